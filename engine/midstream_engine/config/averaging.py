"""Averages of the model over updates.

``trainer.model_averaging`` of the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import draccus

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class ModelAveragingConfig(draccus.ChoiceRegistry):
    """An average of the model, evaluated instead of it and saved with it.

    ``type`` names the kind.
    """

    beta: float = 0.999  # weight of the old average at each update

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta < 1.0:
            raise ConfigError(f"trainer.model_averaging.beta: {self.beta} is not in [0, 1)")

    @classmethod
    def default_choice_name(cls) -> str:
        return "ema"


@ModelAveragingConfig.register_subclass("ema")
@dataclass(frozen=True)
class EmaConfig(ModelAveragingConfig):
    """The exponential moving average: m += (1 - beta) (model - m)."""


@ModelAveragingConfig.register_subclass("ema_decay_sqrt")
@dataclass(frozen=True)
class EmaDecaySqrtConfig(ModelAveragingConfig):
    """A weighted mean whose weights change at ``switch_step``.

    Update t weighs 1 - beta before ``switch_step``, then 1 - sqrt of its part of the decay.
    """

    switch_step: int = 100_000  # the update at which the decay of the weights begins
    decay_steps: int = 100_000  # updates until the weight is 0 and the average is constant

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.switch_step < 0 or self.decay_steps < 1:
            raise ConfigError("trainer.model_averaging: switch_step must not be negative, decay_steps be positive")
