"""Facts of a trainer that hold before its run file is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream_host.driver.run_file import YES, Batch, Checkpoints, Metrics, Stop, Stored


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
    """

    name: str
    title: str
    resume: tuple[str, ...] | None
    checkpoints: Checkpoints | None
    metrics: Metrics | None
    stop: Stop = field(default_factory=Stop)
    stored: Stored = field(default_factory=Stored)
    elsewhere: OtherProcesses = field(default_factory=OtherProcesses)
    batch: Batch = field(default_factory=Batch)
    packages: tuple[str, ...] = ()
