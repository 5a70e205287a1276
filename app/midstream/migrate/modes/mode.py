"""Interface of a mode: all in which one way of migrating differs from another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from midstream.errors import UsageError
from midstream.migrate import stages
from midstream.migrate.modes.assumptions import (
    CERTIFY_SECONDS,
    DEFAULT_COPY_SPEED,
    DEFAULT_DISK_SPEED,
    ENGINE_START_SECONDS,
    REHEARSED_STEPS,
)

if TYPE_CHECKING:
    from midstream.migrate.modes.work import DowntimeSeconds, Rates, Source, Work


class Mode:
    """A way of migrating. The methods here are those of a mode with a standby.

    Attributes:
        name: Word of ``--mode``.
        sequence: What happens, in one line.
        has_standby: An attempt compiles, rehearses and waits on the target before the source is sealed.
        replays: The standby is a replica: it computes the source's steps again, and nothing is copied to start it.
        fallback: Mode in which a migration continues whose replica cannot take over; empty: none.
        alternative: End of the hint to one who does not agree to its consent.
    """

    name: ClassVar[str]
    sequence: ClassVar[str]
    has_standby: ClassVar[bool] = True
    replays: ClassVar[bool] = False
    fallback: ClassVar[str] = ""
    alternative: ClassVar[str] = ""

    # ------------------------------------------------------------------------------------------ checks

    def check_stores(self, run_id: str, bucket: str) -> None:
        """Check ``bucket``, a checkpoint store of either end. UsageError if it is refused."""

    def check_import(self) -> None:
        """Check whether another trainer's checkpoint can be imported. UsageError if not."""

    def check_source(self, source: Source) -> None:
        """Check the state of the run. UsageError if it cannot be migrated."""

    def check_trainer(self, run_id: str, trainer: str, hosts: tuple[str, ...]) -> None:
        """Check a run of another trainer, on the hosts of both ends.

        Raises:
            UsageError: It cannot be migrated so.
        """
        if len(hosts) > 2:
            raise UsageError(
                f"the rehearsal of {trainer} is on one host, and this migration has the hosts " + ", ".join(hosts),
                "--mode cold",
            )

    # ------------------------------------------------------------------------------------------ words

    def consent(self, source: Source) -> tuple[str, ...]:
        """Return what the user has to agree to."""
        return ()

    def warnings(self, source: Source) -> tuple[str, ...]:
        """Return what the user should know."""
        return ()

    def queue_warnings(self, wait: str, *, shared: bool) -> tuple[str, ...]:
        """Return what the queue of a SLURM cluster means.

        Args:
            wait: Expected time in the queue.
            shared: Source and target are on one login node.
        """
        return ()

    def consequence(self, source: str, target: str, later: str) -> str:
        """Return what happens, as a sentence. ``later``: how long the downtime is."""
        return f"{source} saves and stops for good; {later} later it continues on {target}."

    # ------------------------------------------------------------------------------------------ estimates

    def downtime(self, seconds: DowntimeSeconds) -> dict[str, float]:
        """Return the seconds of each phase of the downtime, from formulas.

        The target has compiled before, and objects are copied while others are still being saved, so the copy counts
        with the time beyond the save; it is verified during the copy and again by the restore.
        """
        return {
            "quiesce": 0.3 + seconds.step,
            "save": 0.2 + seconds.save,
            "copy": 0.5 + max(0.0, seconds.copy - seconds.save),
            "verify": 0.0,
            "provision": 0.2,
            "install": 0.0,
            "compile": 0.0,
            "restore": 0.5 + seconds.read,
            "first_step": seconds.target_step,
        }

    def predicted(self, seconds: DowntimeSeconds, measured: Mapping[str, float], *, running: bool) -> dict[str, float]:
        """Return the seconds of each phase of the downtime.

        Args:
            seconds: What the phases consist of.
            measured: Seconds that earlier migrations measured, which replace formulas.
            running: The source trains. If not, nothing is stopped or saved, and the checkpoint is copied before.
        """
        phases = {**self.downtime(seconds), **measured}
        return phases if running else {**phases, "quiesce": 0.0, "save": 0.0, "copy": min(phases["copy"], 0.5)}

    def unknown_phases(self, work: Work, rates: Rates) -> tuple[str, ...]:
        """Return the phases of the downtime whose duration nothing shows."""
        sized = () if work.checkpoint_bytes else ("save", "copy", "restore")
        first_step = () if rates.step or work.step else ("first_step",)
        return tuple(name for name in (*sized, *first_step) if name not in rates.entries)

    def prepared_stages(self, work: Work, rates: Rates) -> dict[str, float | None]:
        """Return the seconds of the stages from the copied data to the downtime."""
        step, measured = rates.step or work.step, rates.stages
        restore = work.checkpoint_bytes / DEFAULT_DISK_SPEED
        rehearsal = restore + REHEARSED_STEPS * step if work.checkpoint_bytes and step else None
        return {
            stages.CHECKPOINT: work.copy_seconds(rates),
            stages.START: measured.get(stages.START, ENGINE_START_SECONDS),
            stages.COMPILE: measured.get(stages.COMPILE, work.compile),
            stages.REHEARSE: measured.get(stages.REHEARSE, rehearsal),
        }

    def certify_seconds(self, work: Work, rates: Rates) -> float | None:
        """Return the seconds of the certificate; None: unknown."""
        step = rates.step or work.step
        return CERTIFY_SECONDS + work.steps_compared * step if step or not work.steps_compared else None

    def preparation_seconds(
        self, data_bytes: int, checkpoint_bytes: int, rates: Rates, compile_seconds: float, copied_bytes: float
    ) -> float:
        """Estimate the seconds in which the target is prepared while the source trains.

        The preparation consists of copies, an interpreter, a compilation and a restore. Building an environment and a
        replay are not included.

        Args:
            data_bytes: Bytes of data that are copied.
            checkpoint_bytes: Size of the state.
            rates: Measurements between the two hosts.
            compile_seconds: Seconds of a compilation.
            copied_bytes: Bytes of the checkpoint that are copied.
        """
        ready = ENGINE_START_SECONDS + compile_seconds + checkpoint_bytes / DEFAULT_DISK_SPEED
        return (data_bytes + copied_bytes) / (rates.copy or DEFAULT_COPY_SPEED) + ready
