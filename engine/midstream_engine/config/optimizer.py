"""How it is trained: ``optimizer`` of the configuration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import draccus

from midstream_engine.config.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine", "inv", "inv_sqrt")


@dataclass(frozen=True)
class SkipStepConfig:
    """Updates whose loss or gradient norm is far above the recent ones are left out (OLMo, Groeneveld et al. 2024)."""

    rolling_interval_length: int = 128  # losses and norms that are remembered
    sigma_factor: float = 6.0  # standard deviations above their mean that are too many

    def __post_init__(self) -> None:
        if self.rolling_interval_length < 2 or self.sigma_factor <= 0:
            raise ConfigError("optimizer.skip_bad_steps: rolling_interval_length is at least 2, sigma_factor above 0")


@dataclass(frozen=True)
class OptimizerConfig(draccus.ChoiceRegistry):
    """What every optimizer shares: the learning-rate schedule and the decay of weights.

    ``warmup``, ``decay`` and ``rewarmup`` are a fraction of their cycle where they are at most 1, a number of steps
    above it.
    """

    learning_rate: float = 1e-4  # at the peak
    weight_decay: float = 0.0  # decoupled
    lr_schedule: str = "cosine"  # constant, linear, cosine, inv or inv_sqrt: the shape of the decay
    cosine_exponent: float = 1.0  # of the cosine's curve between the peak and its end
    inv_sqrt_timescale: float = 10_000.0  # updates, warmup included, after which inv_sqrt begins to fall
    min_lr_ratio: float = 0.1  # where the decay ends, as a part of the peak
    warmup: float = 0.01  # of the first cycle: a fraction or steps
    decay: float | None = None  # a fraction or steps; None: all that the warmup leaves
    rewarmup: float = 0.0  # the warmup of the later cycles: a fraction or steps
    cycles: Any = None  # a number of cycles, or the steps at which they end
    cycle_length: Any = None  # steps, a fraction of the run, or a list of steps
    # Which arrays decay: parts of their names, or a regular expression; None: all but norms, embeddings and biases.
    weight_decay_modules: Any = None
    # Whether the rule of None also holds beside weight_decay_modules; false without modules: every array decays.
    default_weight_decay_mask: bool | None = None
    # Leave out updates that stand out: true, a window's length, or {rolling_interval_length, sigma_factor}.
    skip_bad_steps: Any = False

    def __post_init__(self) -> None:
        if self.lr_schedule not in SCHEDULES:
            raise ConfigError(
                f"optimizer.lr_schedule: {self.lr_schedule!r} is not known; use one of {', '.join(SCHEDULES)}"
            )
        if self.cycles is not None and self.cycle_length is not None:
            raise ConfigError("optimizer.cycles and optimizer.cycle_length exclude each other: remove one")
        for name in ("cosine_exponent", "inv_sqrt_timescale"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"optimizer.{name}: {getattr(self, name)} is not positive")
        for name in ("learning_rate", "weight_decay", "min_lr_ratio", "warmup", "rewarmup", "decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"optimizer.{name}: {value} is negative or no number")
        for name in ("warmup", "rewarmup", "decay"):
            value = getattr(self, name)
            if value is not None and value > 1 and value % 1:
                raise ConfigError(
                    f"optimizer.{name}: {value} is neither a fraction up to 1 nor a whole number of steps"
                )
        if self.lr_schedule == "inv" and self.min_lr_ratio == 0:
            raise ConfigError("optimizer.min_lr_ratio: lr_schedule 'inv' needs one above 0, its curve never reaches 0")
        self._check_cycles()
        self._check_modules()
        self.skip_step()

    def _check_cycles(self) -> None:
        whole = [self.cycles] if isinstance(self.cycles, int) else self.cycles or []
        lengths = self.cycle_length if isinstance(self.cycle_length, list) else []
        for name, values in (("cycles", whole), ("cycle_length", lengths)):
            if not isinstance(values, list) or not all(_positive(value) and value % 1 == 0 for value in values):
                raise ConfigError(
                    f"optimizer.{name}: {getattr(self, name)!r} is neither a positive number nor a list of steps"
                )
        if self.cycle_length is not None and not lengths and not _positive(self.cycle_length):
            raise ConfigError(f"optimizer.cycle_length: {self.cycle_length!r} is neither a fraction, steps nor a list")

    def _check_modules(self) -> None:
        modules = self.weight_decay_modules
        if isinstance(modules, str):
            try:
                re.compile(modules)
            except re.error as error:
                raise ConfigError(
                    f"optimizer.weight_decay_modules: {modules!r} is no regular expression: {error}"
                ) from None
        elif modules is not None and not (isinstance(modules, list) and all(isinstance(one, str) for one in modules)):
            raise ConfigError(
                f"optimizer.weight_decay_modules: {modules!r} is neither a regular expression nor a list of names"
            )

    @classmethod
    def default_choice_name(cls) -> str:
        return "adam"

    def skip_step(self) -> SkipStepConfig | None:
        """What ``skip_bad_steps`` means; None: no update is left out."""
        value = self.skip_bad_steps
        if value is None or value is False:
            return None
        if value is True:
            return SkipStepConfig()
        if isinstance(value, int):
            return SkipStepConfig(value)
        names = {"rolling_interval_length", "sigma_factor"}
        if not isinstance(value, dict) or not set(value) <= names:
            raise ConfigError(f"optimizer.skip_bad_steps: {value!r} is neither true, a length nor {sorted(names)}")
        return SkipStepConfig(int(value.get("rolling_interval_length", 128)), float(value.get("sigma_factor", 6.0)))

    def warnings(self) -> list[str]:
        """Lines about values that are legal and probably not meant."""
        return [
            f"optimizer.{name}: {getattr(self, name):g} means 100 % of the cycle, not one step"
            for name in ("warmup", "rewarmup")
            if getattr(self, name) == 1
        ]


@OptimizerConfig.register_subclass("adam")
@dataclass(frozen=True)
class AdamConfig(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    beta1: float = 0.9  # what stays of the mean of gradients
    beta2: float = 0.95  # what stays of the mean of their squares
    epsilon: float = 1e-8  # added to the root of the second moment
    max_grad_norm: float | None = 1.0  # gradients are scaled down to it; None or 0: no clipping
    nesterov: bool = False  # look ahead along the momentum (Dozat 2016)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name}: {getattr(self, name)} is not in [0, 1)")
        for name in ("epsilon", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"optimizer.{name}: {value} is negative")


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
