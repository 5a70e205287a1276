"""Trainer of a directory, and the process that runs it there, for a run file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.state_directory import state_directory
from midstream.trainers.registry import SCRIPT, TRAINERS
from midstream_host.trainers import processes
from midstream_host.trainers.processes import TrainerDirectory, TrainingProcess

RUN_FILE = "run.yaml"
_PLACEHOLDERS = (
    (r"--nproc[-_]per[-_]node(=| )\S+", r"--nproc_per_node\1{devices}"),
    (r"--nnodes(=| )\S+", r"--nnodes\1{nodes}"),
    (r"--node[-_]rank(=| )\S+", r"--node_rank\1{rank}"),
    (r"--master[-_]addr(=| )\S+", r"--master_addr\1{master}"),
    (r"--master[-_]port(=| )\S+", r"--master_port\1{port}"),
    (r"--num[-_]gpus(=| )\S+", r"--num_gpus\1{devices}"),
    (r"--num[-_]processes(=| )\S+", r"--num_processes\1{world}"),
)


def split_place(text: str, hosts: HostPool | None) -> tuple[Host, str]:
    """Return host and directory of ``DIR`` or ``HOST:DIR``.

    Raises:
        UsageError: The fleet has no such host.
    """
    name, colon, path = text.partition(":")
    if colon and "/" not in name:
        if hosts is None:
            raise UsageError(f"{text}: there is no fleet file", "midstream --init writes one")
        return hosts.get(name), path
    return LocalHost("this machine", LocalHostConfig(root=str(state_directory() / "files"))), str(Path(text).resolve())


def look_at(host: Host, directory: str) -> TrainerDirectory:
    """Describe a directory on a host. MidstreamError if it is missing."""
    try:
        return host.call(processes.look)(directory=directory)
    except RemoteError as error:
        raise MidstreamError(error.message, "a directory in which a trainer runs, or its code is") from None


def launcher_of(directory: TrainerDirectory) -> TrainingProcess | None:
    """Return the process that started those that train in a directory.

    None without one. Of several programs it is the one that computes: it, or a process that it has started, holds an
    accelerator, or has loaded a library that trains. Else it is the one that another one's output is not written to
    (``train | tee log``), and that writes files.

    Raises:
        UsageError: Several run there, and nothing shows which of them trains.
    """
    roots = [process for process in directory.processes if not process.parent]
    evidence = {root.pid: _evidence(root, _started_by(root, directory.processes)) for root in roots}
    best = max(evidence.values(), default=())
    chosen = [root for root in roots if evidence[root.pid] == best]
    if len(chosen) > 1:
        listed = "; ".join(f"{root.pid} {shlex.join(root.words)[:60]}" for root in chosen)
        raise UsageError(
            f"{len(chosen)} programs run in {directory.directory}, and nothing shows which of them trains: {listed}",
            "leave them running and start the one to migrate in a directory of its own, by --launch",
        )
    return chosen[0] if chosen else None


def _started_by(root: TrainingProcess, processes: Sequence[TrainingProcess]) -> list[TrainingProcess]:
    """Return a process with those that it, or one of them, has started."""
    group = [root]
    for process in group:  # it grows
        group += [other for other in processes if other.parent == process.pid]
    return group


def _evidence(root: TrainingProcess, group: Sequence[TrainingProcess]) -> tuple[int, bool, bool, bool]:
    """Return what shows that a program trains, the strongest first."""
    return (
        max(process.computes for process in group),
        any("python" in process.executable.rpartition("/")[2] for process in group),
        not root.fed_by,
        any(process.writes for process in group),
    )


def trainer_of(directory: TrainerDirectory, launcher: TrainingProcess | None) -> str:
    """Return the trainer that command, imports or programs show; else a script."""
    words = " ".join(launcher.words) if launcher is not None else ""
    named = [name for name, trainer in TRAINERS.items() if trainer.named_in_commands]
    matches = {name: re.search(rf"(^|/|\s|-m\s){name}(\s|$)", words) for name in named}
    places = {match.start(): name for name, match in matches.items() if match is not None}
    if places:
        return places[min(places)]
    for name, trainer in TRAINERS.items():
        if any(
            imported == module or imported.startswith(f"{module}.")
            for module in trainer.imports
            for imported in directory.imports
        ):
            return name
    shown = (name for name, trainer in TRAINERS.items() if any(command in words for command in trainer.commands))
    return next(shown, SCRIPT.name)


def with_placeholders(words: Sequence[str]) -> str:
    """Return a command line with placeholders for what differs on each host."""
    if "python" in words[0].rpartition("/")[2]:
        words = ["{python}", *words[1:]]
    line = " ".join(word if re.fullmatch(r"[\w@%+=:,./{}-]+", word) else shlex.quote(word) for word in words)
    for pattern, replacement in _PLACEHOLDERS:
        line = re.sub(pattern, replacement, line)
    for starter in (launcher for trainer in TRAINERS.values() for launcher in trainer.launchers):
        # It starts as many processes as it finds GPUs.
        program = rf"((?:^|/|\s){re.escape(' '.join(starter.program))})(?=\s)(?!.*{starter.flag})"
        line = re.sub(program, rf"\1 {starter.flag} {starter.placeholder}", line)
    return line
