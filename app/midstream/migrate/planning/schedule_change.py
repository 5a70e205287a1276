"""Effects of a changed batch size or number of steps on the rest of a run.

A new batch size applies from the step of the takeover on; the learning rate of each step is that of the new schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import yaml

from midstream.counts import count
from midstream.errors import UsageError
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import Change
from midstream_core.json_types import JsonValue, RunConfig, list_or_empty
from midstream_core.learning_rate import RatePart, ScheduleError, rate_at, rate_parts, rate_settings

BATCH, STEPS = "trainer.train_batch_size", "trainer.num_train_steps"
_ONE_CYCLE: Mapping[str, Sequence[JsonValue]] = {"cycles": (None, 1), "cycle_length": (None,), "cooldown": (None, 0)}
REPORTED_STEPS = (0, 100, 1000)  # steps from now for which the learning rate is reported


@dataclass(frozen=True)
class TrainingSchedule:
    """Number of steps, batch sizes and learning rates of a run."""

    steps: int
    points: tuple[tuple[int, int], ...]  # (first step, examples of an update from there on), from step 0
    seq_len: int
    optimizer: RunConfig

    def samples(self, step: int) -> int:
        """Return the number of examples in the updates before ``step``."""
        ends = [start for start, _ in self.points[1:]] + [step]
        return sum(size * max(0, min(end, step) - start) for (start, size), end in zip(self.points, ends, strict=True))

    def tokens(self, step: int) -> int:
        return self.samples(step) * self.seq_len

    def size(self, step: int) -> int:
        """Return the number of examples of update ``step``."""
        return next(size for start, size in reversed(self.points) if start <= step)

    def then(self, step: int, other: TrainingSchedule) -> TrainingSchedule:
        """Return ``other`` with this schedule's batch sizes before ``step``."""
        past = [point for point in self.points if point[0] < step]
        later = [point for point in other.points if point[0] > step]
        return TrainingSchedule(other.steps, (*past, (step, other.size(step)), *later), other.seq_len, other.optimizer)

    @property
    def one_cycle(self) -> bool:
        """Whether there is one warmup and one decay."""
        return all(self.optimizer.get(name) in alone for name, alone in _ONE_CYCLE.items())

    @property
    def parts(self) -> list[RatePart]:
        """Warmups, stable parts and decays, in order."""
        return rate_parts(rate_settings(self.optimizer), self.steps)

    @property
    def warmup_ends(self) -> int:
        return min(self.steps, sum(phase.length for phase in self.parts if phase.kind == "warmup"))

    @property
    def decay_begins(self) -> int:
        return next((phase.start for phase in self.parts if phase.kind == "decay"), self.steps)

    def rate(self, step: int) -> float:
        """Return the learning rate of update ``step``."""
        return rate_at(self.parts, step)


def training_schedule(config: RunConfig, overrides: Mapping[str, str] | None = None) -> TrainingSchedule:
    """Read the schedule of a run.yaml.

    ``overrides`` are engine flags (``trainer.num_train_steps`` -> ``"5000"``) that replace its values.

    Raises:
        UsageError: An override cannot be read, or the learning rate has no schedule for that number of steps.
    """
    trainer = dict(section(config, "trainer"))
    given = overrides or {}
    for name in (BATCH, STEPS):
        if name in given:
            trainer[name.partition(".")[2]] = _value(name, given[name])
    optimizer = dict(section(config, "optimizer"))
    for name, text in given.items():
        if name.startswith("optimizer."):
            optimizer[name.partition(".")[2]] = _value(name, text)
    batch: object = trainer.get("train_batch_size") or 1
    entries: Sequence[Any] = [{"start": 0, "value": batch}]
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        entries = cast("Sequence[Any]", batch)
    points = tuple(sorted((int(entry["start"]), int(entry["value"])) for entry in entries))
    seq_len = int(section(config, "model").get("seq_len") or 0)
    schedule = TrainingSchedule(int(trainer.get("num_train_steps") or 0), points, seq_len, optimizer)
    try:
        _ = schedule.steps and schedule.parts
    except ScheduleError as error:
        raise UsageError(f"--optimizer.{error}", f"the run would have {count(schedule.steps, 'step')}") from None
    return schedule


def _value(name: str, text: str) -> Any:
    """Parse an override."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if name == STEPS and not (isinstance(value, int) and value > 0):
        raise UsageError(f"--{name} {text!r} is not a number of steps", f"-- --{name} 5000")
    if name == BATCH and not ((isinstance(value, int) and value > 0) or _is_schedule(value)):
        raise UsageError(f"--{name} {text!r} is neither a number nor a schedule", f"-- --{name} 64")
    return value


def _is_schedule(value: Any) -> bool:
    """Return whether a value is a list of ``{start, value}``."""
    entries = list_or_empty(value)
    return bool(entries) and all(
        isinstance(e, dict) and {"start", "value"} == {*cast("dict[Any, Any]", e)} for e in entries
    )


def differs(before: TrainingSchedule, after: TrainingSchedule, step: int) -> bool:
    """Return whether the schedules differ from ``step`` on."""
    return (after.steps, after.optimizer) != (before.steps, before.optimizer) or before.then(
        step, after
    ) != before.then(step, before)


def explain(before: TrainingSchedule, after: TrainingSchedule, step: int) -> tuple[Change, ...]:
    """Return the schedule's changes from ``step`` on; empty where nothing changes."""
    if not differs(before, after, step):
        return ()
    mixed = before.then(step, after)
    changes = [
        Change("samples", f"{before.samples(before.steps)}", f"{mixed.samples(mixed.steps)}", "of the run in total"),
        Change("tokens", f"{before.tokens(before.steps)}", f"{mixed.tokens(mixed.steps)}", "of the run in total"),
    ]
    if before.one_cycle and after.one_cycle:
        changes += [
            Change("warmup", f"ends at {before.warmup_ends}", f"ends at {after.warmup_ends}", _passed(after, step)),
            Change("decay", f"{before.decay_begins} to {before.steps}", f"{after.decay_begins} to {after.steps}"),
        ]
    elif before.parts != after.parts:
        changes.append(
            Change("schedule", "its cycles", "other ends", "cycles are divided again by the number of steps")
        )
    for ahead in REPORTED_STEPS:
        at = step + ahead
        if at < min(before.steps, after.steps):
            name = "rate" if not ahead else f"rate +{ahead}"
            changes.append(
                Change(name, f"{before.rate(at):.4g}", f"{after.rate(at):.4g}", f"learning rate at step {at}")
            )
    return tuple(changes)


def _passed(after: TrainingSchedule, step: int) -> str:
    return f"at step {step} the run would warm up again" if step < after.warmup_ends else ""
