"""What another batch size or another number of steps does to the rest of a run.

The engine keeps what is past: a new batch size holds from the step at which the run crosses over, and the learning rate
of each step is that of the new schedule. Shapes of the schedule as in Levanter's documentation of ``optimizer.*``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.errors import UsageError
from midstream.migrate.model import Change

BATCH, STEPS = "trainer.train_batch_size", "trainer.num_train_steps"
LOOK_AHEAD = (0, 100, 1000)  # steps from now, at which the learning rate is told


@dataclass(frozen=True)
class Rhythm:
    """How a run counts. ``points``: (first step, examples an update from there on), from step 0."""

    steps: int
    points: tuple[tuple[int, int], ...]
    seq_len: int
    optimizer: Mapping[str, Any]

    def samples(self, step: int) -> int:
        """Examples that the updates before ``step`` consume."""
        ends = [start for start, _ in self.points[1:]] + [step]
        return sum(size * max(0, min(end, step) - start) for (start, size), end in zip(self.points, ends, strict=True))

    def tokens(self, step: int) -> int:
        return self.samples(step) * self.seq_len

    def size(self, step: int) -> int:
        """Examples of update ``step``."""
        return next(size for start, size in reversed(self.points) if start <= step)

    def then(self, step: int, other: Rhythm) -> Rhythm:
        """This one's batches before ``step``, the other's from there on, and all else as the other has it."""
        past = [point for point in self.points if point[0] < step]
        later = [point for point in other.points if point[0] > step]
        return Rhythm(other.steps, (*past, (step, other.size(step)), *later), other.seq_len, other.optimizer)

    # ------------------------------------------------------------------------------------------ the learning rate

    @property
    def one_cycle(self) -> bool:
        """Whether positions and rates can be told here: a run that is cut into cycles moves all of them."""
        return self.optimizer.get("cycles") in (None, 1) and self.optimizer.get("cycle_length") is None

    @property
    def warmup_ends(self) -> int:
        return min(self.steps, _steps(self.optimizer.get("warmup", 0.0), self.steps))

    @property
    def decay_begins(self) -> int:
        rest = self.steps - self.warmup_ends
        decay = self.optimizer.get("decay")
        return self.steps - (rest if decay is None else min(rest, _steps(decay, self.steps)))

    def rate(self, step: int) -> float:
        """The learning rate of update ``step``."""
        told = self.optimizer
        peak = float(told.get("learning_rate", 0.0))
        low = peak * float(told.get("min_lr_ratio", 0.0))
        if step < self.warmup_ends:
            return peak * step / self.warmup_ends
        begins = self.decay_begins
        if step < begins:
            return peak
        return _fallen(told, peak, low, step - begins, self.steps - begins, self.warmup_ends)


def _fallen(told: Mapping[str, Any], peak: float, low: float, count: int, length: int, warmup: int) -> float:
    """The rate ``count`` steps into a decay of ``length``."""
    shape = told.get("lr_schedule") or "cosine"
    done = min(1.0, count / length) if length else 0.0
    if shape == "linear":
        return peak + (low - peak) * done
    if shape == "cosine":
        ratio = float(told.get("min_lr_ratio", 0.0))
        exponent = float(told.get("cosine_exponent", 1.0))
        return peak * ((1 - ratio) * (0.5 * (1 + math.cos(math.pi * done))) ** exponent + ratio)
    if shape == "inv":
        return peak / ((peak / low - 1.0) * done + 1.0)
    if shape == "inv_sqrt":
        scale = float(told.get("inv_sqrt_timescale", 10000.0))
        return max(peak * min(1.0, 1.0 / math.sqrt(max(count + warmup, 1) / scale)), low)
    return peak


def _steps(value: Any, length: int) -> int:
    """Steps: ``value`` itself above 1, that fraction of ``length`` up to 1."""
    number = float(value)
    return int(number * length) if number <= 1.0 else int(number)


def rhythm(config: Mapping[str, Any], overrides: Mapping[str, str] | None = None) -> Rhythm:
    """Of a run.yaml, with the engine flags ``overrides`` (``trainer.num_train_steps`` -> ``"5000"``). UsageError where
    an override cannot be read."""
    trainer = dict(config.get("trainer") or {})
    given = overrides or {}
    for name in (BATCH, STEPS):
        if name in given:
            trainer[name.partition(".")[2]] = _value(name, given[name])
    optimizer = dict(config.get("optimizer") or {})
    for name, text in given.items():
        if name.startswith("optimizer."):
            optimizer[name.partition(".")[2]] = _value(name, text)
    batch = trainer.get("train_batch_size") or 1
    entries = batch if isinstance(batch, Sequence) and not isinstance(batch, str) else [{"start": 0, "value": batch}]
    points = tuple(sorted((int(entry["start"]), int(entry["value"])) for entry in entries))
    seq_len = int((config.get("model") or {}).get("seq_len") or 0)
    return Rhythm(int(trainer.get("num_train_steps") or 0), points, seq_len, optimizer)


def _value(name: str, text: str) -> Any:
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if name == STEPS and not (isinstance(value, int) and value > 0):
        raise UsageError(f"--{name} {text!r} is not a number of steps", f"-- --{name} 5000")
    schedule = isinstance(value, list) and all(isinstance(e, dict) and {"start", "value"} == set(e) for e in value)
    if name == BATCH and not ((isinstance(value, int) and value > 0) or (schedule and value)):
        raise UsageError(f"--{name} {text!r} is neither a number nor a schedule", f"-- --{name} 64")
    return value


def differs(before: Rhythm, after: Rhythm, step: int) -> bool:
    """Whether anything from ``step`` on is another run than the one that was begun."""
    return (after.steps, after.optimizer) != (before.steps, before.optimizer) or before.then(
        step, after
    ) != before.then(step, before)


def explain(before: Rhythm, after: Rhythm, step: int) -> tuple[Change, ...]:
    """What changes from ``step`` on, number by number. Empty where nothing does."""
    if not differs(before, after, step):
        return ()
    mixed = before.then(step, after)
    changes = [
        Change("samples", f"{before.samples(before.steps)}", f"{mixed.samples(mixed.steps)}", "that the run has seen"),
        Change("tokens", f"{before.tokens(before.steps)}", f"{mixed.tokens(mixed.steps)}", "by its end"),
    ]
    if not (before.one_cycle and after.one_cycle):
        return (*changes, Change("schedule", "its cycles", "other ends", "cycles are cut anew from the steps"))
    changes += [
        Change("warmup", f"ends at {before.warmup_ends}", f"ends at {after.warmup_ends}", _passed(after, step)),
        Change("decay", f"{before.decay_begins} to {before.steps}", f"{after.decay_begins} to {after.steps}"),
    ]
    for ahead in LOOK_AHEAD:
        at = step + ahead
        if at < min(before.steps, after.steps):
            name = "rate" if not ahead else f"rate +{ahead}"
            changes.append(
                Change(name, f"{before.rate(at):.4g}", f"{after.rate(at):.4g}", f"learning rate at step {at}")
            )
    return tuple(changes)


def _passed(after: Rhythm, step: int) -> str:
    return f"at step {step} the run would warm up again" if step < after.warmup_ends else ""
