"""Facts of a trainer that hold before its run file is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from midstream.errors import MidstreamError
from midstream_host.driver.run_file import YES, BatchDivision, Checkpoints, Metrics, RunFile, Stop, StoredContents


@dataclass(frozen=True)
class OtherProcesses:
    """Contents of a checkpoint for another number of processes than saved it.

    Attributes:
        random_state: Whether the random state continues there: yes at best as the run file states it, no or unknown.
        data_position: The same of the position of the data.
        changes: What else changes with the number, one line each.
        changes_from_one: What changes where one of both numbers is 1.
    """

    random_state: str = YES
    data_position: str = YES
    changes: tuple[str, ...] = ()
    changes_from_one: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launcher:
    """A program that starts one process for each GPU that it finds.

    The program's own configuration may set another number. ``program``: how its command line begins. ``flag``: of the
    number of processes; ``placeholder``: its value.
    """

    program: tuple[str, ...]
    flag: str
    placeholder: str


def _no_problem(run: RunFile, saved: int, loaded: int, position: Callable[[], str]) -> MidstreamError | None:  # noqa: ARG001 (of `TrainerDefaults.data_problem`)
    return None


@dataclass(frozen=True)
class TrainerDefaults:
    """A trainer's defaults.

    Attributes:
        name: The word of ``trainer:`` in a run file.
        title: Its name in messages.
        resume: Words that are added to the command to resume from ``{checkpoint}``; None where each script has its own.
        checkpoints: Where they are, and what a complete one is; None where each script has its own.
        metrics: Where its losses are; None where each script has its own.
        stop: How it is stopped.
        stored: What its checkpoints have besides parameters and optimizer.
        elsewhere: What they have for another number of processes.
        batch: What keeps the global batch where the command has no placeholder for it.
        packages: Packages whose versions decide results.
        imports: Modules by whose import a program shows that it is of this trainer.
        named_in_commands: Whether its name as a word of a command shows it.
        commands: Parts of a command that show it where nothing else shows a trainer.
        launchers: Programs that start its processes.
        one_process: It has one process on each node, with all of its devices, as programs in jax.
        starts_processes: It starts one process for each device by itself.
        sees_all: It divides each batch over all GPUs that it sees, or starts a process for each, whatever the command.
        logs_epochs: The epoch of a row shows how many examples were read.
        data_problem: Returns why the position of the data cannot be restored by another number of processes, from the
            run file, both numbers and a function that reads how the newest checkpoint has the position.
    """

    name: str
    title: str
    resume: tuple[str, ...] | None
    checkpoints: Checkpoints | None
    metrics: Metrics | None
    stop: Stop = field(default_factory=Stop)
    stored: StoredContents = field(default_factory=StoredContents)
    elsewhere: OtherProcesses = field(default_factory=OtherProcesses)
    batch: BatchDivision = field(default_factory=BatchDivision)
    packages: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    named_in_commands: bool = True
    commands: tuple[str, ...] = ()
    launchers: tuple[Launcher, ...] = ()
    one_process: bool = False
    starts_processes: bool = False
    sees_all: bool = False
    logs_epochs: bool = False
    data_problem: Callable[[RunFile, int, int, Callable[[], str]], MidstreamError | None] = _no_problem
