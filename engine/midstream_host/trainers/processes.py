"""Processes of other trainers on this host, with or without an attempt."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
from typing import Dict, List, Optional, Sequence, Set

from midstream_core import records
from midstream_core.visible_devices import VISIBLE
from midstream_host.declarations import reads, repeatable
from midstream_host.driver.adopted_trainer import ADOPTED
from midstream_host.driver.marked_processes import end_marked
from midstream_host.driver.trainer_process import end_processes
from midstream_host.shapes import FileName, Text
from midstream_host.trainers.programs import program_texts

ENVIRONMENTS = (".venv", "venv", "env")  # virtual environments, by the usual names
MAX_PROCESSES = 64  # processes that are reported
MAX_COMMAND = 4096  # characters of a command line
MAPS = 8 << 20  # bytes of the list of files that a process has mapped
# What a process holds that computes on an accelerator; monitors such as nvidia-smi hold only /dev/nvidia0 and the like.
ACCELERATOR = re.compile(r"/dev/(?:nvidia-uvm|kfd|accel\d+|accel/\S+|vfio/\d+)")
# Files of the libraries by which programs train.
LIBRARY = re.compile(
    rb"/(?:libtorch_cpu|libtorch_python|libxla_extension|jaxlib|libjax\w*|tensorflow|libtensorflow\w*|"
    rb"libtpu|libpaddle|libmlx|libcublas|libhipblas)(?:[./-]|\n)"
)
# Variables whose values describe the processes of a run; of others only the names are reported.
SHOWN = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "NNODES", "NPROC_PER_NODE", VISIBLE)


@dataclasses.dataclass(frozen=True)
class TrainingProcess:
    """Process that computes in a directory: command line and names in its environment.

    ``parent``: the pid of the process that started it, where that works in the directory too; else 0. ``started``: its
    start time in clock ticks since the boot, which distinguishes it from a later process of its pid. ``computes``: 2 if
    it holds an accelerator, 1 if it has loaded a library that trains, else 0. ``fed_by``: the pid of another process of
    the directory whose output it reads by a pipe, else 0. ``writes``: it has a file below the directory open to write,
    beside its output.
    """

    pid: int
    started: int
    parent: int
    words: List[Text]
    executable: FileName
    directory: FileName
    variables: List[Text]  # names
    distributed: Dict[str, str]  # values of `SHOWN`
    computes: int = 0
    fed_by: int = 0
    writes: bool = False


@dataclasses.dataclass(frozen=True)
class TrainerDirectory:
    """Directory of a trainer: its processes, programs, imports and run file."""

    directory: FileName
    processes: List[TrainingProcess]
    programs: List[FileName]
    imports: List[Text]
    run_file: Optional[Text]  # text of its run.yaml
    interpreters: List[FileName] = dataclasses.field(default_factory=lambda: [])  # of virtual environments in it


@repeatable("what has ended stays ended")
def end(root: str, run_id: str, attempt: int) -> List[int]:
    """Kill every trainer process that an attempt of this host started or adopted.

    Return what still runs.
    """
    directory = records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt).dir
    running: List[int] = []
    for process in range(_processes(directory)):
        running += end_marked("{}#{}".format(directory, process))
    adopted = records.ProcessIdentity.read_or_none(posixpath.join(directory, ADOPTED))
    return running + (end_processes([adopted]) if adopted is not None else [])


def _processes(directory: str) -> int:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    numbers = [
        int(match.group(1)) for match in (re.fullmatch(r"status-([0-9]{1,6})\.json", name) for name in names) if match
    ]
    return max(numbers, default=0) + 1


@reads()
def look(directory: str) -> TrainerDirectory:
    """Describe a directory. Raises FileNotFoundError where it is missing."""
    directory = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(directory):
        raise FileNotFoundError("{}: there is no such directory".format(directory))
    programs = sorted(name for name in os.listdir(directory) if name.endswith(".py"))[:MAX_PROCESSES]
    imports: Set[str] = set()
    for text in program_texts(directory, programs):
        imports.update(re.findall(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", text, re.MULTILINE))
    run_file = None
    try:
        run_file = records.read_bytes(posixpath.join(directory, "run.yaml"), 1 << 20).decode(errors="replace")
    except (OSError, records.RecordError):
        run_file = None
    interpreters = [posixpath.join(directory, name, "bin/python") for name in ENVIRONMENTS]
    return TrainerDirectory(
        directory,
        _training(directory),
        programs,
        sorted(imports)[:MAX_PROCESSES],
        run_file,
        [path for path in interpreters if os.access(path, os.X_OK)],
    )


def _training(directory: str) -> List[TrainingProcess]:
    """Return the processes that run a program in the working directory ``directory``.

    Shells and editors are left out, and so is the command that calls this function, which a user types in that
    directory.
    """
    training: Dict[int, TrainingProcess] = {}
    calling = _with_ancestors(os.getpid())
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) in calling:
            continue
        process = _process(int(name), directory)
        if process is not None:
            training[process.pid] = process
    mine = sorted(training.values(), key=lambda process: process.pid)
    writers = {pipe: process.pid for process in mine for pipe in _pipes(process.pid, (1, 2))}
    fed = {
        process.pid: next((writers[pipe] for pipe in _pipes(process.pid, (0,)) if pipe in writers), 0)
        for process in mine
    }
    return [
        dataclasses.replace(
            process,
            parent=process.parent if process.parent in training else 0,
            fed_by=fed[process.pid] if fed[process.pid] != process.pid else 0,
        )
        for process in mine
    ][:MAX_PROCESSES]


def _pipes(pid: int, descriptors: Sequence[int]) -> List[str]:
    """Return the pipes among descriptors of a process, by their inodes."""
    pipes: List[str] = []
    for number in descriptors:
        try:
            pipes.append(os.readlink("/proc/{}/fd/{}".format(pid, number)))
        except OSError:
            continue
    return [pipe for pipe in pipes if pipe.startswith("pipe:")]


def _computes(pid: int) -> int:
    """Return what shows that a process computes; see `TrainingProcess.computes`."""
    if any(ACCELERATOR.fullmatch(path) for path in _open_files(pid).values()):
        return 2
    try:
        with open("/proc/{}/maps".format(pid), "rb") as file:
            return int(LIBRARY.search(file.read(MAPS)) is not None)
    except OSError:
        return 0


def _open_files(pid: int) -> Dict[int, str]:
    """Return the open files of a process, by descriptor."""
    files: Dict[int, str] = {}
    place = "/proc/{}/fd".format(pid)
    try:
        names = os.listdir(place)
    except OSError:
        return {}
    for name in names:
        try:
            files[int(name)] = os.readlink(posixpath.join(place, name))
        except (OSError, ValueError):
            continue
    return files


def _writes(pid: int, directory: str) -> bool:
    """Return whether a process writes a file below the directory, beside its output."""
    for number, path in _open_files(pid).items():
        if number < 3 or not path.startswith(directory.rstrip("/") + "/"):
            continue
        try:
            with open("/proc/{}/fdinfo/{}".format(pid, number), encoding="ascii") as file:
                flags = re.search(r"^flags:\s*(\d+)", file.read(4096), re.MULTILINE)
        except (OSError, ValueError):
            continue
        if flags is not None and int(flags.group(1), 8) & os.O_ACCMODE != os.O_RDONLY:
            return True
    return False


def _with_ancestors(pid: int) -> Set[int]:
    """Return a process, the one that started it, and so on."""
    pids: Set[int] = set()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            pid = int(_stat(pid)[1])
        except (OSError, ValueError, IndexError):
            break
    return pids


def _stat(pid: int) -> List[str]:
    """Return the fields of a process's stat after its name.

    OSError or IndexError if it has ended.
    """
    with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as stat:
        return stat.read().rsplit(")", 1)[1].split()


def _started_as(word: str, executable: str, directory: str, variables: Dict[str, str]) -> str:
    """Return the path by which a process was started.

    An interpreter has the packages of a virtual environment only if it is started by the link there.
    """
    if word.startswith("/"):
        return word
    folders = [directory] if "/" in word else variables.get("PATH", "").split(":")
    if "/" not in word and variables.get("VIRTUAL_ENV"):
        folders.append(posixpath.join(variables["VIRTUAL_ENV"], "bin"))
    for folder in folders:
        path = posixpath.normpath(posixpath.join(directory, folder, word))
        if os.path.realpath(path) == executable:
            return path
    return executable


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
            variables = [word.decode(errors="replace") for word in file.read(1 << 20).split(b"\0") if b"=" in word]
        fields = _stat(pid)
        parent, started = int(fields[1]), int(fields[19])
        executable = os.readlink(posixpath.join(place, "exe"))
    except (OSError, ValueError, IndexError):
        return None
    if not words or posixpath.basename(executable) in ("bash", "dash", "sh", "zsh", "fish", "tmux", "screen", "vim"):
        return None
    pairs = dict(variable.split("=", 1) for variable in variables)
    return TrainingProcess(
        pid=pid,
        started=started,
        parent=parent,
        words=[word[:MAX_COMMAND] for word in words[:256]],
        executable=_started_as(words[0], executable, directory, pairs),
        directory=directory,
        variables=sorted(pairs)[:512],
        distributed={key: pairs[key][:100] for key in SHOWN if key in pairs},
        computes=_computes(pid),
        writes=_writes(pid, directory),
    )
