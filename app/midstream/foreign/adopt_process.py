"""Adoption of a trainer that runs already.

Its run becomes a run of midstream, and nothing of it is restarted.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.foreign.initial_run_file import RUN_FILE, launcher_of, look_at, split_place
from midstream.foreign.launch_run_file import with_host_files
from midstream.hosts.host_pool import HostPool
from midstream.launch.launch_run import launch_run
from midstream.launch.reporter import reporter_of
from midstream.launch.start_attempt import Attempt
from midstream.launch.trainer_config import TrainerStart
from midstream.remote.runs import run_state
from midstream.remote.trainers.processes import TrainingProcess
from midstream.trainers.run_file_parser import parse_run_file


def adopt_process(
    hosts: HostPool,
    fleet: Fleet,
    place: str,
    run_id: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Attempt:
    """Adopt the trainer that runs in ``HOST:DIR``.

    Its driver reads the metrics and checkpoints that it writes, and stops it by the policy of its run file, which has
    to be in the directory.

    Args:
        hosts: Connections to the fleet's hosts.
        fleet: The fleet.
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
    found = look_at(host, directory)
    launcher = launcher_of(found)
    if launcher is None:
        raise UsageError(
            f"no program runs in {host.name}:{found.directory}",
            f"midstream --launch {RUN_FILE} --on {host.name} starts a run",
        )
    if found.run_file is None:
        raise UsageError(
            f"{host.name}:{found.directory} has no {RUN_FILE}", f"midstream --init-run {place} writes one; put it there"
        )
    path = Path(f"{host.name}:{found.directory}/{RUN_FILE}")
    parsed = parse_run_file(
        found.run_file, path, lambda name: host.call(run_state.read_text)(path=f"{found.directory}/{name}")
    )
    run = dataclasses.replace(parsed.run, directory=found.directory)
    if run.out == "out" and run.uses("out"):
        say(f"{{out}} is {found.directory}/out: out: in the run file names another directory")
    run = with_host_files(run, host, found.directory)
    chosen = run_id or parsed.run_id or f"{Path(found.directory).name}-{secrets.token_hex(3)}"
    say(f"process {launcher.pid} on {host.name} is adopted: {' '.join(launcher.words)[:200]}")
    attach = ("--attach", str(launcher.pid), "--attach-started", str(launcher.started))
    start = TrainerStart(run, (*world_flags(launcher, found.processes), *attach))
    return launch_run(hosts, fleet, host.name, None, chosen, (), say, start)


def world_flags(launcher: TrainingProcess, processes: Sequence[TrainingProcess]) -> tuple[str, ...]:
    """Return the driver's flag for the number of processes.

    None where no environment has it.

    A launcher, such as torchrun, gives it to the processes that it starts: its own environment lacks it. Checkpoints
    have files of each of these processes.

    Args:
        launcher: The process that is adopted.
        processes: All of the directory.
    """
    started = [each.distributed.get("WORLD_SIZE", "") for each in processes if each.pid != launcher.pid]
    own = [launcher.distributed.get(name, "") for name in ("WORLD_SIZE", "NPROC_PER_NODE")]
    size = next((each for each in (*started, *own) if each.isdecimal() and int(each)), "")
    return ("--devices", size) if size else ()
