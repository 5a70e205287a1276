"""How it is trained: ``optimizer`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import draccus

from midstream_engine.config.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine", "inv", "inv_sqrt")


@dataclass(frozen=True)
class OptimizerConfig(draccus.ChoiceRegistry):
    """What every optimizer shares: the learning-rate schedule and the decay of weights.

    ``warmup``, ``decay`` and ``rewarmup`` are a fraction of their cycle where they are at most 1, a number of steps
    above it.
    """

    learning_rate: float = 1e-4
    weight_decay: float = 0.0
    lr_schedule: str = "cosine"
    min_lr_ratio: float = 0.1
    warmup: float = 0.01
    decay: float | None = None  # None: all that the warmup leaves
    rewarmup: float = 0.0
    cycles: Any = None  # a number of cycles, or the steps at which they end
    cycle_length: Any = None  # steps, a fraction of the run, or a list of steps

    def __post_init__(self) -> None:
        if self.lr_schedule not in SCHEDULES:
            raise ConfigError(
                f"optimizer.lr_schedule: {self.lr_schedule!r} is not known; use one of {', '.join(SCHEDULES)}"
            )
        if self.cycles is not None and self.cycle_length is not None:
            raise ConfigError("optimizer.cycles and optimizer.cycle_length exclude each other: remove one")
        for name in ("learning_rate", "weight_decay", "min_lr_ratio", "warmup", "rewarmup"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"optimizer.{name}: {getattr(self, name)} is negative")
        if self.lr_schedule == "inv" and self.min_lr_ratio == 0:
            raise ConfigError("optimizer.min_lr_ratio: lr_schedule 'inv' needs one above 0, its curve never reaches 0")

    @classmethod
    def default_choice_name(cls) -> str:
        return "adam"

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

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0  # None or 0: no clipping
