"""Processes of other trainers on this host.

They are those of an attempt, and those that train without midstream.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
from typing import Dict, List, Optional, Set

from midstream.remote.declarations import reads, repeatable
from midstream.remote.shapes import FileName, Text
from midstream_engine import records
from midstream_engine.foreign.attempt.adopted_trainer import ADOPTED
from midstream_engine.foreign.marked_processes import end_marked
from midstream_engine.foreign.trainer_process import end_processes

MOST = 64  # processes that are reported
LONGEST = 4096  # characters of a command line
# Variables whose values describe the processes of a run; of others only the names are reported.
SHOWN = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "NNODES", "NPROC_PER_NODE")


@dataclasses.dataclass(frozen=True)
class TrainingProcess:
    """Process that computes in a directory: command line and names in its environment.

    ``parent``: the pid of the process that started it, where that works in the directory too; else 0. ``started``: its
    start time in clock ticks since the boot, which distinguishes it from a later process of its pid.
    """

    pid: int
    started: int
    parent: int
    words: List[Text]
    executable: FileName
    directory: FileName
    variables: List[Text]  # names
    distributed: Dict[str, str]  # values of `SHOWN`


@dataclasses.dataclass(frozen=True)
class TrainerDirectory:
    """A directory in which a trainer runs or ran.

    It has its processes, its files, and what its programs import.
    """

    directory: FileName
    processes: List[TrainingProcess]
    programs: List[FileName]
    imports: List[Text]
    run_file: Optional[Text]  # text of its run.yaml


@repeatable("what has ended stays ended")
def end(root: str, run_id: str, attempt: int) -> List[int]:
    """Kill every trainer process that an attempt of this host started or adopted.

    Return what still runs.
    """
    directory = records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt).dir
    left: List[int] = []
    for process in range(_processes(directory)):
        left += end_marked("{}#{}".format(directory, process))
    adopted = records.ProcessIdentity.read_or_none(posixpath.join(directory, ADOPTED))
    return left + (end_processes([adopted]) if adopted is not None else [])


def _processes(directory: str) -> int:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    numbers = [
        int(found.group(1)) for found in (re.fullmatch(r"status-([0-9]{1,6})\.json", name) for name in names) if found
    ]
    return max(numbers, default=0) + 1


@reads()
def look(directory: str) -> TrainerDirectory:
    """Describe a directory. Raises FileNotFoundError where it is missing."""
    directory = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(directory):
        raise FileNotFoundError("{}: there is no such directory".format(directory))
    names = sorted(os.listdir(directory))
    programs = [name for name in names if name.endswith(".py")][:MOST]
    imports: Set[str] = set()
    for name in programs:
        try:
            with records.open_regular(posixpath.join(directory, name)) as file:
                text = file.read(1 << 20).decode(errors="replace")
        except (OSError, records.RecordError):
            continue
        imports.update(re.findall(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", text, re.MULTILINE))
    run_file = None
    try:
        run_file = records.read_bytes(posixpath.join(directory, "run.yaml"), 1 << 20).decode(errors="replace")
    except (OSError, records.RecordError):
        run_file = None
    return TrainerDirectory(directory, _training(directory), programs, sorted(imports)[:MOST], run_file)


def _training(directory: str) -> List[TrainingProcess]:
    """Return processes whose working directory is the directory.

    They are those that run a program: shells and editors are left out, and the command that calls this, which a
    user types in that directory.
    """
    found: Dict[int, TrainingProcess] = {}
    calling = _with_ancestors(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) in calling:
            continue
        one = _process(int(name), directory)
        if one is not None:
            found[one.pid] = one
    mine = list(found.values())
    return [
        dataclasses.replace(each, parent=each.parent if each.parent in found else 0)
        for each in sorted(mine, key=lambda each: each.pid)
    ][:MOST]


def _with_ancestors(pid: int) -> Set[int]:
    """Return a process, the one that started it, and so on."""
    found: Set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(_stat(pid)[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _stat(pid: int) -> List[str]:
    """Return the fields of a process's stat after its name.

    OSError or IndexError if it has ended.
    """
    with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as stat:
        return stat.read().rsplit(")", 1)[1].split()


def _process(pid: int, directory: str) -> Optional[TrainingProcess]:
    """Describe a process of this user that works in the directory and is no shell.

    Return None for any other.
    """
    place = "/proc/{}".format(pid)
    try:
        if os.readlink(posixpath.join(place, "cwd")) != directory:
            return None
        with open(posixpath.join(place, "cmdline"), "rb") as file:
            words = [word.decode(errors="replace") for word in file.read(1 << 16).split(b"\0") if word]
        with open(posixpath.join(place, "environ"), "rb") as file:
            variables = [each.decode(errors="replace") for each in file.read(1 << 20).split(b"\0") if b"=" in each]
        fields = _stat(pid)
        parent, started = int(fields[1]), int(fields[19])
        executable = os.readlink(posixpath.join(place, "exe"))
    except (OSError, ValueError, IndexError):
        return None
    if not words or posixpath.basename(executable) in ("bash", "dash", "sh", "zsh", "fish", "tmux", "screen", "vim"):
        return None
    pairs = dict(each.split("=", 1) for each in variables)
    return TrainingProcess(
        pid=pid,
        started=started,
        parent=parent,
        words=[word[:LONGEST] for word in words[:256]],
        executable=words[0] if words[0].startswith("/") else executable,
        directory=directory,
        variables=sorted(pairs)[:512],
        distributed={key: pairs[key][:100] for key in SHOWN if key in pairs},
    )
