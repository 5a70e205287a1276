"""Learning rates of the Trainer of transformers, and ours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from midstream_core.learning_rate import RatePart, RateSettings, rate_parts, rate_settings
from midstream_engine.config.optimizer import OptimizerConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue

WSD = "warmup_stable_decay"
KINDS = (
    "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr", "polynomial", WSD,
)  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "cosine_with_min_lr": {"min_lr_rate": None, "min_lr": None}, "polynomial": {"lr_end": 1e-7, "power": 1.0},
    WSD: {"num_decay_steps": None, "decay_type": "cosine", "warmup_type": "linear", "min_lr_ratio": 0.0},
}  # fmt: skip


@dataclass(frozen=True)
class TrainerSchedule:
    """A schedule by its names in TrainingArguments.

    ``settings``: lr_scheduler_kwargs. Lengths are updates.
    """

    kind: str  # lr_scheduler_type
    peak: float
    warmup: int
    total: int
    settings: ForeignConfig = field(default_factory=dict[str, ForeignValue])

    @property
    def low(self) -> float:
        """The rate at the end, as a fraction of the peak."""
        settings = self.settings
        if self.kind == "polynomial":
            return float(settings.get("lr_end", 1e-7)) / self.peak if self.peak else 0.0
        if settings.get("min_lr") is not None:
            return float(settings["min_lr"]) / self.peak if self.peak else 0.0
        return float(settings.get("min_lr_rate") or settings.get("min_lr_ratio") or 0.0)

    @property
    def decay(self) -> int:
        """Updates of the decay."""
        return int(self.settings["num_decay_steps"]) if self.kind == WSD else self.total - self.warmup

    def rate(self, count: int) -> float:
        """Return the learning rate of the update with this count, from 0."""
        if self.kind == "constant":
            return self.peak
        if count < self.warmup:
            low = self.low if self.kind == WSD else 0.0
            return self.peak * (low + (1 - low) * count / self.warmup)
        begin = self.total - self.decay
        if self.kind == "constant_with_warmup" or count < begin:
            return self.peak
        done = min((count - begin) / max(1, self.decay), 1.0)
        if self.kind.startswith("cosine") or self.settings.get("decay_type", self.kind == WSD and "cosine") == "cosine":
            remaining = 0.5 * (1 + math.cos(math.pi * done))
        else:
            remaining = (1 - done) ** float(self.settings.get("power", 1.0))
        return self.peak * (self.low + (1 - self.low) * remaining)

    def check(self) -> None:
        """Check that ``rate`` is right for the type and its settings.

        Raises:
            ConversionError: The type, or one of its settings, is not known here.
        """
        if self.kind not in KINDS:
            raise ConversionError(f"lr_scheduler_type: {self.kind!r} is none of {', '.join(KINDS)}")
        names = _DEFAULTS.get(self.kind, {})
        for name, value in self.settings.items():
            usual = 0.5 if name == "num_cycles" else "linear" if name == "warmup_type" else value
            if value != usual or name not in (*names, "num_cycles") or isinstance(value, (dict, list)):
                raise ConversionError(f"lr_scheduler_kwargs.{name}: {value!r} has no counterpart with {self.kind}")
        if self.kind == WSD and self.settings.get("decay_type", "cosine") not in ("cosine", "linear"):
            raise ConversionError(f"lr_scheduler_kwargs.decay_type: {self.settings['decay_type']!r} is no decay here")

    def ours(self) -> dict[str, object]:
        """Return the fields of ``optimizer`` that have these rates."""
        shape = {"cosine_with_min_lr": "cosine", "constant_with_warmup": "constant"}.get(self.kind, self.kind)
        values: dict[str, object] = {"learning_rate": self.peak, "min_lr_ratio": self.low}
        if self.kind == WSD:
            shape = str(self.settings.get("decay_type", "cosine"))
            values["decay"] = _steps(self.decay, self.total)
        if self.kind == "polynomial":
            values["polynomial_power"] = float(self.settings.get("power", 1.0))
        warmup = 0 if self.kind == "constant" else self.warmup
        return {**values, "lr_schedule": shape, "warmup": _steps(warmup, self.total)}


def _steps(steps: int, total: int) -> float:
    """Return a number of steps for ``warmup`` or ``decay``.

    1 would mean all of the run there.
    """
    return 1.5 / total if steps == 1 else float(steps)


def schedule_of(optimizer: OptimizerConfig, total: int) -> TrainerSchedule:
    """Return the Trainer's schedule that is the nearest to ours; rates may differ.

    Raises:
        ConversionError: It has none of this shape.
    """
    settings = rate_settings(dataclasses.asdict(optimizer))
    parts = rate_parts(settings, total)
    warmup = parts[0].length if parts[0].kind == "warmup" else 0
    body = parts[1:] if warmup else parts
    kinds = ", ".join(rates.kind for rates in body)
    falls = [rates for rates in body if rates.kind == "cooldown" or (rates.kind == "decay" and _falls(settings))]
    if not falls:
        return TrainerSchedule("constant_with_warmup" if warmup else "constant", settings.learning_rate, warmup, total)
    if falls != body[-1:] or len(body) > 2:
        raise ConversionError(f"optimizer: its schedule has {kinds}, and {WSD} of Trainer has one decay at the end")
    kind, more = _decay(settings, falls[0], len(body) > 1)
    return TrainerSchedule(kind, settings.learning_rate, warmup, total, more)


def _falls(settings: RateSettings) -> bool:
    return settings.lr_schedule != "constant" and settings.min_lr_ratio != 1


def _decay(settings: RateSettings, fall: RatePart, stable: bool) -> tuple[str, dict[str, object]]:
    """Return the type of a decay, and its settings.

    ``stable``: a stable part is before it.
    """
    shape = "linear" if fall.kind == "cooldown" else settings.lr_schedule
    if stable and shape in ("linear", "cosine"):
        return WSD, {"num_decay_steps": fall.length, "decay_type": shape, "min_lr_ratio": settings.min_lr_ratio}
    if shape == "cosine" and not stable:
        return ("cosine_with_min_lr", {"min_lr_rate": settings.min_lr_ratio}) if settings.min_lr_ratio else (shape, {})
    if shape == "linear" and not settings.min_lr_ratio and not stable:
        return shape, {}
    if shape in ("linear", "polynomial") and not stable:
        return "polynomial", {
            "lr_end": settings.low, "power": 1.0 if shape == "linear" else settings.polynomial_power
        }  # fmt: skip
    raise ConversionError(f"optimizer.lr_schedule: {shape} here, and Trainer has {', '.join(KINDS)}")
