"""Learning rate at each update, for the engine and the app's planner.

A run is cut into cycles; a cycle is a warmup (linear, from where the cycle before ended, or 0), then a stable part at
the peak, then a decay in the configured shape down to ``min_lr_ratio`` of the peak. A cooldown may follow the last.
The formulas are written once, for Python's numbers and for arrays. Rules and formulas are those of two releases of
Levanter, equal to theirs at every update: ``tests/fixtures/levanter/generate_schedules.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from midstream_core.json_types import JsonObject, float_of

LEVANTER_0_2 = "levanter-0.2"  # marin-levanter 0.2
LEVANTER_1_2 = "levanter-1.2"
RULES = (LEVANTER_0_2, LEVANTER_1_2)
SHAPES = ("constant", "linear", "cosine", "inv", "inv_sqrt", "polynomial", "inv_sqrt_decay")
NOT_IN_1_2 = ("polynomial", "inv_sqrt_decay")
EMPTY_CYCLES = 10_000  # cycles that a run of fewer steps may have, as in Levanter: most of them are empty
MAX_CYCLES = 100_000  # of a run: each is an object in memory
_TEXTS = ("lr_schedule", "schedule_rules")


class ScheduleError(ValueError):
    """Error of settings that give no schedule for a run of this length.

    The message begins with the field's name.
    """


Number = Any  # of Python, or an array of them in the engine


class Functions(NamedTuple):
    """The functions of the formulas: of Python's numbers (`PLAIN`) or of arrays."""

    cos: Callable[[Number], Number]
    sqrt: Callable[[Number], Number]
    minimum: Callable[[Number, Number], Number]
    maximum: Callable[[Number, Number], Number]
    divide: Callable[[Number, Number], Number]  # by 0: infinite


def _divide(dividend: float, divisor: float) -> float:
    if not divisor and not dividend:  # a decay of no steps from the peak to the peak
        raise ScheduleError(f"decay: no number of steps is left to decay in, for which {LEVANTER_1_2} gives NaN")
    return dividend / divisor if divisor else math.copysign(math.inf, dividend)


PLAIN = Functions(math.cos, math.sqrt, min, max, _divide)


def fraction_or_steps(value: float, length: int) -> int:
    """Return ``value`` if it is above 1, else that fraction of ``length``, in steps."""
    return int(value * length) if value <= 1.0 else int(value)


@dataclass(frozen=True)
class RateSettings:
    """Fields of ``optimizer`` that determine the learning rate, with their defaults."""

    learning_rate: float = 1e-4
    lr_schedule: str = "cosine"
    cosine_exponent: float = 1.0
    inv_sqrt_timescale: float = 10_000.0
    polynomial_power: float = 2.0
    inv_sqrt_decay_constant: float = 28.6
    min_lr_ratio: float = 0.1
    warmup: float = 0.01
    decay: float | None = None
    rewarmup: float = 0.0
    cycles: float | list[float] | None = None
    cycle_length: float | list[float] | None = None
    cooldown: float | None = None
    schedule_rules: str = LEVANTER_0_2

    @property
    def low(self) -> float:
        """The learning rate at the end of a decay."""
        return self.learning_rate * self.min_lr_ratio


def rate_settings(optimizer: JsonObject) -> RateSettings:
    """Read the settings from the fields of ``optimizer``.

    The fields are numbers or their text; others are ignored.
    """
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(RateSettings)):
        value = optimizer.get(name)
        if value is not None:
            values[name] = value if name in _TEXTS or type(value) is list else float_of(value)
    return RateSettings(**values)


def _steps(steps: Sequence[float]) -> list[int]:
    return [int(step) for step in steps]


def cycle_ends(settings: RateSettings, total: int) -> list[int]:
    """Return where cycles begin and end: ``[0, ..., total]``.

    Ends beyond ``total`` cut a cycle off. A cycle may be empty; the next one then begins with ``rewarmup``.

    Raises:
        ScheduleError: Ends decrease, lengths exceed the run, a length is no step, or cycles are more than steps and
            than EMPTY_CYCLES, or more than MAX_CYCLES.
    """
    cycles, length = settings.cycles, settings.cycle_length
    inner: list[int] = []
    if isinstance(length, list):
        inner = list(itertools.accumulate(_steps(length)))
        if inner[-1:] > [total]:
            raise ScheduleError(f"cycle_length: the cycles have {inner[-1]} steps in all, more than the run's {total}")
    elif length is not None:
        steps = fraction_or_steps(length, total)
        if steps < 1:
            raise ScheduleError(f"cycle_length: {length:g} of {total} steps is less than one step")
        if total // steps > MAX_CYCLES:
            raise ScheduleError(f"cycle_length: {length:g} of {total} steps are more than {MAX_CYCLES:,} cycles")
        inner = [index * steps for index in range(1, total // steps)]
    elif isinstance(cycles, list):
        inner = _steps(cycles)
    elif cycles is not None:
        if cycles > max(total, EMPTY_CYCLES):
            raise ScheduleError(f"cycles: {cycles:g} cycles are more than the run's {total} steps")
        if cycles > MAX_CYCLES:
            raise ScheduleError(f"cycles: {cycles:g} cycles are more than {MAX_CYCLES:,}")
        inner = [int(total / cycles * (index + 1)) for index in range(int(cycles) - 1)]
    if inner != sorted(inner):
        raise ScheduleError(f"cycles: {inner} decrease")
    ends = [0, *inner]
    return ends if ends[-1] == total else [*ends, total]


@dataclass(frozen=True)
class RatePart:
    """A part of a schedule: from update ``start`` on, until the next part's start.

    ``length`` is the number of updates in which a warmup reaches the peak, or a decay its end.
    """

    settings: RateSettings
    kind: str  # warmup, stable, decay or cooldown
    start: int
    length: int
    begins_at: float = 0.0  # the learning rate at the start of a warmup or cooldown
    warmup: int = 0  # of a decay: the updates of its cycle's warmup

    def rate(self, step: Number, functions: Functions) -> Number:
        """Return the learning rate at ``step``, at least ``start``.

        ``step``: a number, or an int array of any shape; the result has its shape, or is a number where all are equal.
        """
        count, peak = step - self.start, self.settings.learning_rate
        if self.kind == "warmup":
            return _linear(self.begins_at, peak, count, self.length, functions)
        if self.kind == "cooldown":
            return _linear(self.begins_at, self.settings.low, count, self.length, functions)
        return self._decayed(count, functions) if self.kind == "decay" else peak

    def _decayed(self, count: Number, functions: Functions) -> Number:
        """Return the learning rate ``count`` updates into the decay."""
        settings, shape, length = self.settings, self.settings.lr_schedule, self.length
        peak, low = settings.learning_rate, settings.low
        if shape == "linear":
            return _linear(peak, low, count, length, functions)
        if shape == "polynomial":
            return _linear(peak, low, count, length, functions, settings.polynomial_power)
        if shape == "cosine":
            done = functions.minimum(count, length) / length
            curve = (0.5 * (1 + functions.cos(math.pi * done))) ** settings.cosine_exponent
            return peak * ((1 - settings.min_lr_ratio) * curve + settings.min_lr_ratio)
        if shape == "inv":
            slope = functions.divide((peak / low - 1) * functions.maximum(count, 1), length)
            return functions.maximum(peak * functions.minimum(1.0, functions.divide(1.0, slope + 1)), low)
        if shape == "inv_sqrt":  # flat until the timescale, counted with the warmup
            counted = functions.maximum(count + self.warmup, 1) / settings.inv_sqrt_timescale
            return functions.maximum(peak * functions.minimum(1.0, 1.0 / functions.sqrt(counted)), low)
        if shape == "inv_sqrt_decay":
            falling = functions.sqrt(1.0 + settings.inv_sqrt_decay_constant * count / length)
            return functions.maximum(low, peak / falling)
        return peak


def _linear(first: float, last: float, count: Number, length: int, functions: Functions, power: float = 1.0) -> Number:
    """Return the value after ``count`` of ``length`` steps from ``first`` to ``last``.

    Without steps the value is ``first``.
    """
    if length <= 0:
        return first
    return (first - last) * (1 - functions.minimum(count, length) / length) ** power + last


def rate_parts(settings: RateSettings, total: int) -> list[RatePart]:
    """Return the parts of the schedule of a run of ``total`` updates.

    Of the parts whose start a step has reached, the last in this order applies, and the first before any of them.
    Levanter 1.2 does not limit a warmup and a decay to their cycle, so that a later part may start before an earlier.

    Raises:
        ScheduleError: These settings have no schedule.
    """
    if settings.schedule_rules == LEVANTER_1_2 and settings.lr_schedule in NOT_IN_1_2:
        raise ScheduleError(f"lr_schedule: {LEVANTER_1_2} has no {settings.lr_schedule}")
    cooldown = 0 if settings.cooldown is None else fraction_or_steps(settings.cooldown, total)
    ends = cycle_ends(settings, total - cooldown)
    parts: list[RatePart] = []
    begins_at = 0.0
    for index, end in enumerate(ends[1:]):
        cycle = _cycle(settings, ends[index], end, settings.rewarmup if index else settings.warmup, begins_at)
        last = cycle[-1]
        begins_at = last.rate(last.start + last.length, PLAIN)
        parts += cycle
    if cooldown:
        parts.append(RatePart(settings, "cooldown", total - cooldown, cooldown, begins_at=begins_at))
    return parts


def _cycle(settings: RateSettings, start: int, end: int, stated: float, begins_at: float) -> list[RatePart]:
    """Return the parts of the cycle [start, end).

    The last part is a decay, or stable if nothing decays.
    """
    length, old = end - start, settings.schedule_rules == LEVANTER_1_2
    warmup = fraction_or_steps(stated, length)
    warmup = warmup if old else min(warmup, length)
    decay = length - warmup if settings.decay is None else fraction_or_steps(settings.decay, length)
    decay = decay if old else min(max(decay, 0), max(length - warmup, 0))
    stable = length - warmup - decay
    parts: list[RatePart] = []
    if warmup:
        parts.append(RatePart(settings, "warmup", start, warmup, begins_at=begins_at))
    if stable > 0 or (old and stable):
        parts.append(RatePart(settings, "stable", start + warmup, stable))
    if old and decay <= 0 and settings.lr_schedule == "cosine":
        raise ScheduleError(
            f"decay: a cycle of {length} steps with a warmup of {warmup} has none left to decay, which {LEVANTER_1_2} "
            f"rejects (hint: optimizer.schedule_rules: {LEVANTER_0_2})"
        )
    kind = "decay" if old or decay > 0 else "stable"
    parts.append(RatePart(settings, kind, start + warmup + stable, decay, warmup=warmup))
    return parts


def rate_at(parts: Sequence[RatePart], step: int) -> float:
    """Return the learning rate of update ``step``."""
    segment = next((phase for phase in reversed(parts[1:]) if step >= phase.start), parts[0])
    return float(segment.rate(step, PLAIN))
