"""Adoption of a trainer that already runs as a run of midstream, with no restart."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from midstream.errors import UsageError
from midstream.hosts.host_pool import HostPool
from midstream.install.reporter import reporter_of
from midstream.launch.initial_run_file import RUN_FILE, launcher_of, look_at, split_place
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import launch_run
from midstream.launch.launch_run_file import with_host_files
from midstream.launch.secret_words import without_secrets
from midstream.launch.start_attempt import Attempt
from midstream.launch.trainer_config import TrainerStart, device_count
from midstream.trainers.run_file_parser import parse_run_file
from midstream_core.visible_devices import visible_devices
from midstream_host.runs import run_state
from midstream_host.trainers.processes import TrainingProcess


def adopt_process(
    hosts: HostPool,
    place: str,
    run_id: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Attempt:
    """Adopt the trainer that runs in ``HOST:DIR``.

    A driver reads the metrics and checkpoints that the trainer writes, and stops it by the policy of its run file,
    which has to be in the directory.

    Args:
        hosts: Connections to the fleet's hosts.
        place: ``HOST:DIR``: a host of the fleet file, and the working directory of the trainer.
        run_id: The run; by default that of the run file, else the directory's name with random digits.
        say: Receives the progress; a function is called with sparse lines.

    Raises:
        UsageError: The fleet has no such host, no trainer runs there, or the run file is missing or wrong.
        LaunchError: The driver cannot be started.
    """
    name, colon, _ = place.partition(":")
    if not colon or "/" in name:
        raise UsageError(
            f"--adopt {place}: not HOST:DIR", "a host of the fleet file, and the working directory of the trainer"
        )
    say = reporter_of(say)
    host, directory = split_place(place, hosts)
    survey = look_at(host, directory)
    launcher = launcher_of(survey)
    if launcher is None:
        raise UsageError(
            f"no program runs in {host.name}:{survey.directory}",
            f"midstream --launch {RUN_FILE} --on {host.name} starts a run",
        )
    if survey.run_file is None:
        raise UsageError(
            f"{host.name}:{survey.directory} has no {RUN_FILE}",
            f"midstream --init-run {place} writes one; put it there",
        )
    path = Path(f"{host.name}:{survey.directory}/{RUN_FILE}")
    parsed = parse_run_file(
        survey.run_file, path, lambda name: host.call(run_state.read_text)(path=f"{survey.directory}/{name}")
    )
    run = dataclasses.replace(parsed.run, directory=survey.directory)
    if run.out == "out" and run.uses("out"):
        say(f"{{out}} is {survey.directory}/out: out: in the run file names another directory")
    run = with_host_files(run, host, survey.directory)
    chosen = run_id or parsed.run_id or f"{Path(survey.directory).name}-{secrets.token_hex(3)}"
    words, hidden = without_secrets(launcher.words)
    say(f"process {launcher.pid} on {host.name} is adopted: {' '.join(words)[:200]}")
    if hidden:
        say(f"what looks like a secret is shown as {', '.join(f'${name}' for name in hidden)}, and is not stored")
    attach = ("--attach", str(launcher.pid), "--attach-started", str(launcher.started))
    devices = device_count(host, hosts.fleet.hosts[host.name])
    start = TrainerStart(run, (*world_flags(launcher, survey.processes, devices, run.devices), *attach))
    return launch_run(hosts, LaunchRequest(host.name, run_id=chosen), say, start)


def adopted_words(attempt: Attempt) -> str:
    """Return the outcome of an adoption in one line."""
    return f"{attempt.run_id} on {attempt.host} is adopted as attempt {attempt.number} (midstream --status shows it)"


def world_flags(
    launcher: TrainingProcess, processes: Sequence[TrainingProcess], devices: int, stated: int
) -> tuple[str, ...]:
    """Return the driver's flags for the numbers of devices and processes.

    A launcher, such as torchrun, gives the number of processes to those that it starts: its own environment lacks it.
    Where no environment has it, it is one process, with all devices that it sees.

    Args:
        launcher: The process that is adopted.
        processes: All of the directory.
        devices: Of the host.
        stated: ``devices:`` of the run file; 0: it has none.
    """
    started = [process.distributed.get("WORLD_SIZE", "") for process in processes if process.pid != launcher.pid]
    own = [launcher.distributed.get(name, "") for name in ("WORLD_SIZE", "NPROC_PER_NODE")]
    size = int(next((number for number in (*started, *own) if number.isdecimal() and int(number)), "0"))
    visible = visible_devices(launcher.distributed)
    seen = stated or (devices if visible is None else max(1, min(devices, len(visible))))
    return ("--devices", str(size if size > 1 else seen), "--processes", str(size or 1))
