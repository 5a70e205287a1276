"""The downtime of a migration by phase, predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from midstream.migrate.journal.json_values import fields_of
from midstream.migrate.stages import DOWNTIME_PHASES


def shown_phase(name: str) -> str:
    """Return a phase of the downtime as users read it: ``first step``."""
    return {"quiesce": "last step"}.get(name, name.replace("_", " "))


@dataclass(frozen=True)
class DowntimeReport:
    """Seconds of a migration's downtime, by phase.

    The downtime is from the end of the source's last step to the end of the target's first.
    """

    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    last_step_ended: float | None = None  # UTC seconds, source's clock corrected for skew
    first_step_ended: float | None = None  # UTC seconds, target's clock corrected for skew

    @property
    def total(self) -> float | None:
        if self.last_step_ended is None or self.first_step_ended is None:
            return None
        return self.first_step_ended - self.last_step_ended

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}

    @classmethod
    def from_json(cls, value: Any, where: str = "") -> Self:
        """Read a report from its JSON value.

        Raises:
            RecordError: A field is missing or of another type; names ``where`` and the field.
        """
        return cls(**fields_of(cls, value, where))


def live(predicted: Mapping[str, float], last_step_ended: float, next_step_ended: float) -> DowntimeReport:
    """Report the downtime of a live migration: the wait for the target's next step.

    The target may have done that step before the source ended its last; then the downtime is 0. Times as in ``Marks``.
    """
    gap = max(0.0, next_step_ended - last_step_ended)
    measured = {name: gap if name == "first_step" else 0.0 for name in DOWNTIME_PHASES}
    return DowntimeReport(dict(predicted), measured, last_step_ended, last_step_ended + gap)


@dataclass(frozen=True)
class Marks:
    """Times of a migration: UTC seconds on the operator's clock.

    Times recorded by a host are corrected for its clock skew and have its error; times observed by the operator's
    process bound them. None: not observed.
    """

    last_step_ended: float  # recorded by the source
    source_stopped: float  # recorded by the source
    first_step_ended: float  # recorded by the target
    sealing: float  # when the stop command was sent, or the source was found not running
    stop_seen: float | None = None
    relaunched: float | None = None
    training_seen: float | None = None


def measure(
    predicted: Mapping[str, float],
    marks: Marks,
    *,
    copy_seconds: float,
    verify_seconds: float,
    restore_seconds: float,
    compile_seconds: float,
    first_step_seconds: float,
) -> DowntimeReport:
    """Measure the downtime of a migration.

    The phases add up to the total, also with skewed clocks.

    The downtime begins with the end of the source's last step, or with the migration where the source had ended
    before. ``provision`` is the remainder: calls to the host, the start of the interpreter, imports, and any time in
    which the migration was interrupted.

    Args:
        predicted: Predicted seconds of each phase.
        marks: Times of the migration.
        copy_seconds: Time of the copy.
        verify_seconds: Time of the verification.
        restore_seconds: Time of the restore on the target.
        compile_seconds: Time of the compilation on the target.
        first_step_seconds: Time of the target's first step.
    """
    began = max(marks.last_step_ended, marks.sealing)
    if marks.stop_seen is not None:
        began = min(began, marks.stop_seen)
    stopped = began if marks.stop_seen is None else min(max(began, marks.source_stopped), marks.stop_seen)
    stop_time = stopped if marks.stop_seen is None else marks.stop_seen
    measured = {
        "quiesce": stop_time - stopped,
        "save": stopped - began,
        "copy": copy_seconds,
        "verify": verify_seconds,
        "install": 0.0,  # done while the source trained
        "compile": compile_seconds,
        "restore": restore_seconds,
        "first_step": first_step_seconds,
    }
    ended = marks.first_step_ended
    if marks.relaunched is not None:
        ended = max(ended, marks.relaunched)
    if marks.training_seen is not None:
        ended = min(ended, marks.training_seen)
    ended = max(ended, began + sum(measured.values()))  # each phase was measured with one clock; two clocks may differ
    measured["provision"] = max(0.0, ended - began - sum(measured.values()))
    return DowntimeReport(dict(predicted), {name: measured[name] for name in DOWNTIME_PHASES}, began, ended)
