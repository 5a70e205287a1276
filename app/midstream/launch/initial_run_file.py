"""Run files that are written from what a directory or a running process shows.

Where nothing is shown, there is a comment to fill in.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.launch.secret_words import secrets_note, without_secrets
from midstream.state_directory import state_directory
from midstream.trainers.registry import SCRIPT, TRAINERS
from midstream_core.visible_devices import VISIBLE
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


def run_file_text(directory: TrainerDirectory, launcher: TrainingProcess | None) -> str:
    """Return the text of a run file for a directory, and its running process if any."""
    trainer = _trainer_of(directory, launcher)
    defaults, secrets = TRAINERS[trainer], list[str]()
    if launcher is not None:
        words, secrets = without_secrets(launcher.words)
        launcher = dataclasses.replace(launcher, words=words)
    if launcher is not None:
        command = _with_placeholders(launcher)
    else:
        program = next(
            (name for name in directory.programs if "train" in name), (directory.programs or ["train.py"])[0]
        )
        command = f"{{python}} {program} --output_dir {{out}}"
    python = launcher.words[0] if launcher is not None and "python" in launcher.words[0] else ""
    lines = [
        f"# A run of {defaults.title}; docs: how-to/trainers. Check what is marked.",
        f"trainer: {trainer}",
        f"command: {json.dumps(command)}" + ("" if launcher is not None else "  # check: its flags"),
    ]
    if defaults.resume is None:
        lines.append(f"resume: {json.dumps(command + ' --resume {checkpoint}')}  # check: how the script resumes")
    else:
        lines.append(f"# resume: the command with {' '.join(defaults.resume) or 'nothing more'}")
    lines += [
        'files: ["*.py"]  # code and data that travel',
        "# steps: 100000  # of the run: by them it is known when it has finished",
        "batch: {kept_by: fixed}  # or {sequences: 64, per_device: 8} with {accumulation} and {per_device} in command",
    ]
    if defaults.checkpoints is None:
        lines.append('checkpoints: {rule: glob, pattern: "ckpt-*.pt"}  # check: below {out}')
    if defaults.metrics is None:
        lines.append('metrics: {source: jsonl, path: "{out}/metrics.jsonl"}  # check')
    lines.append(
        f"environment: {{python: {json.dumps(python)}}}  # or lock: conda-lock.yml, uv.lock"
        if python.startswith("/")
        else "# environment: {python: /path/to/python}  # or lock: conda-lock.yml, uv.lock; else python: of each host"
    )
    if launcher is not None:
        names = [
            name for name in launcher.variables if re.match(r"(HF_|TORCH|NCCL_|CUDA_|WANDB_|OMP_|TOKENIZERS_)", name)
        ]
        names = [name for name in names if name != VISIBLE]
        chosen = launcher.distributed.get(VISIBLE)
        if chosen is not None:
            lines.append(f"# it had {VISIBLE}={chosen}  # devices: [{chosen}] of the host in the fleet file")
        if names:
            lines.append(f"# variables that it had: {', '.join(names)}  # environment: {{variables: {{...}}}}")
    lines += [f"# {secrets_note(secrets)}"] if secrets else []
    lines += [f"# {advice}" for advice in defaults.stored.advice]
    return "\n".join(lines) + "\n"


def _trainer_of(directory: TrainerDirectory, launcher: TrainingProcess | None) -> str:
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


def _with_placeholders(launcher: TrainingProcess) -> str:
    words: Sequence[str] = launcher.words
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
