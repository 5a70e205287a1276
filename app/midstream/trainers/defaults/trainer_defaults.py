"""Facts of a trainer that hold before its run file is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream_engine.foreign.run_file import Batch, Checkpoints, Metrics, Stop, Stored


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
    batch: Batch = field(default_factory=Batch)
    packages: tuple[str, ...] = ()
