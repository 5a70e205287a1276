"""Journaled stages of a migration: time taken, and expected time of the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from midstream.format import duration as shown
from midstream.migrate.journal.event import STAGE
from midstream.migrate.journal.journal import Journal, read_events
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.stage_times import DONE, PROGRESS, STARTED, StageTimes, estimates, remaining, stage_times
from midstream.migrate.stages import shown_stage
from midstream_core.json_types import JsonValue

REPORT_INTERVAL = 30.0  # seconds between two lines about a stage that goes on


@dataclass
class StageClock:
    """The stage that runs. One at a time; a stage that begins ends the one before."""

    plan: Plan
    journal: Journal
    current: str = ""
    share: float = 0.0  # of its work that is done, 0 to 1; 0: unknown
    _began: float = 0.0  # monotonic
    _reported: float = 0.0  # monotonic
    _measured: dict[str, float] = field(init=False)  # seconds of stages that have ended, also in earlier processes

    def __post_init__(self) -> None:
        self._measured = dict(stage_times(read_events(self.journal.path)).measured)

    def begin(self, name: str, phase: str) -> None:
        """Begin a stage."""
        if self.current == name:
            return
        self.end(phase)
        self.current, self.share, self._began, self._reported = name, 0.0, time.monotonic(), time.monotonic()
        self._write(phase, STARTED)

    def end(self, phase: str) -> None:
        """End the stage that runs, if there is one."""
        name, self.current = self.current, ""
        if name:
            seconds = time.monotonic() - self._began
            self._measured[name] = self._measured.get(name, 0.0) + seconds
            self.journal.write(STAGE, phase=phase, state=DONE, stage=name, seconds=seconds)

    def abandon(self) -> None:
        """End the stage that runs without a measurement: it failed."""
        self.current = ""

    @contextlib.contextmanager
    def stage(self, name: str, phase: str) -> Generator[None]:
        """Context manager: what runs in it is this stage. What fails is not measured."""
        self.begin(name, phase)
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.end(phase)

    def report(self, phase: str) -> None:
        """Journal what is left, at most every `REPORT_INTERVAL` seconds of a stage."""
        if self.current and time.monotonic() - self._reported >= REPORT_INTERVAL:
            self._reported = time.monotonic()
            self._write(phase, PROGRESS)

    def _write(self, phase: str, state: str) -> None:
        expected = estimates(self.plan, self.journal.facts)
        elapsed = time.monotonic() - self._began
        now = time.time()
        remains = remaining(expected, StageTimes(self._measured, self.current, now - elapsed, self.share), now)
        estimated = expected.get(self.current)
        took = f" for {shown(elapsed)}" if state == PROGRESS else ""
        took += f", {self.share:.0%} done" if took and self.share else ""
        about = "of unknown duration" if estimated is None else f"of about {shown(estimated)}"
        overdue = f", {shown(remains.overdue)} longer than estimated" if remains.overdue >= 1.0 else ""
        detail: dict[str, JsonValue] = {
            "stage": self.current,
            "estimated_seconds": estimated,
            "elapsed_seconds": elapsed,
            "remaining_seconds": remains.seconds,
            "unknown": list(remains.unknown),
        }
        message = f"{shown_stage(self.current)}{took} ({about}{overdue}); left in all: {remains.text()}"
        self.journal.write(STAGE, phase=phase, state=state, message=message, **detail)
