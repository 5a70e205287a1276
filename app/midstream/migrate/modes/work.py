"""Work of a migration and measured rates, of which modes estimate durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from midstream.migrate.modes.assumptions import DEFAULT_COPY_SPEED


@dataclass(frozen=True)
class Rates:
    """Measured rates between two hosts; None, or a missing entry: not measured."""

    copy: float | None = None  # bytes a second between the two hosts
    step: float | None = None  # seconds a step on the target
    # Seconds of each downtime phase of migrations in the same mode, scaled to the current size of the state.
    entries: Mapping[str, float] = field(default_factory=dict[str, float])
    stages: Mapping[str, float] = field(default_factory=dict[str, float])  # seconds of `duration.stages`
    installs: Mapping[bool, float] = field(default_factory=dict[bool, float])  # seconds; True: it was there already


@dataclass(frozen=True)
class Work:
    """Work of a migration that determines its duration."""

    checkpoint_bytes: int  # 0: unknown
    data_bytes: tuple[int, ...] | None  # that each host of the target lacks; None: unknown
    copies_checkpoint: bool  # an existing checkpoint is copied before the downtime
    shared_store: bool  # both ends read one bucket: no checkpoint is copied
    environment_ready: bool | None  # on the target; None: unknown
    steps_compared: int  # by the certificate, after the first
    healthy_steps: int
    further_hosts: int = 0  # of the target, which get checkpoint and data from its first one
    replayed_steps: int = 0  # by a replica
    step: float = 0.0  # seconds a step on the source; 0: unknown
    compile: float | None = None  # seconds on the source

    def copied_bytes(self, rates: Rates) -> float:
        """Return the checkpoint bytes to copy, to all of the target's hosts; 0 if unknown."""
        return 0.0 if self.shared_store else self.checkpoint_bytes * self._rounds(rates)

    def sent_data(self, rates: Rates) -> int:
        """Return the bytes of data that are sent to the target's hosts; 0 if unknown."""
        missing = self.data_bytes or (0,)
        return sum(missing) if rates.copy is None else max(missing)  # as `_rounds`

    def copy_seconds(self, rates: Rates) -> float | None:
        """Return the seconds to copy the checkpoint; None: its size is unknown."""
        if not self.shared_store and not self.checkpoint_bytes:
            return None
        return self.copied_bytes(rates) / (rates.copy or DEFAULT_COPY_SPEED)

    def _rounds(self, rates: Rates) -> int:
        """Return how often the bytes of a tree are sent.

        A measured rate includes the copies to further hosts.
        """
        return 1 if rates.copy is not None else 1 + self.further_hosts


@dataclass(frozen=True)
class DowntimeSeconds:
    """Seconds of which the downtime's phases consist.

    Attributes:
        step: One step on the source.
        first_step: The first step of its newest attempt, with the compilation.
        target_step: One step on the target.
        save: The save of the state, with hashing.
        copy: Its copy to the target.
        read: Its restore or verification on the target.
    """

    step: float
    first_step: float
    target_step: float
    save: float
    copy: float
    read: float


@dataclass(frozen=True)
class Source:
    """State of the run on its source, of which a mode says whether it can migrate it.

    Attributes:
        run_id: The run.
        running: Whether it trains.
        state: Word of its state.
        checkpoint: The requested checkpoint: ``now``, ``latest`` or a step.
        saved: Whether it has a complete checkpoint.
        replayed_steps: Steps since its newest checkpoint.
        step: Seconds a step.
        precisions: ``trainer.mp`` and ``trainer.matmul_precision``, before and after the migration.
    """

    run_id: str
    running: bool
    state: str
    checkpoint: str
    saved: bool
    replayed_steps: int
    step: float
    precisions: tuple[tuple[str, str], tuple[str, str]]
