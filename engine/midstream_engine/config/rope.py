"""Rotary position embeddings: ``model.rope`` of the configuration.

``type``: default, linear or llama3.
"""

from __future__ import annotations

from dataclasses import dataclass

import draccus

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class RopeConfig(draccus.ChoiceRegistry):
    """Rotary positions (Su et al., "RoFormer", 2021).

    ``theta`` is the base of the wavelengths.
    """

    theta: float = 10_000.0

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ConfigError(f"model.rope.theta: {self.theta} is not positive")
        if not getattr(self, "factor", 1.0) > 0:
            raise ConfigError(f"model.rope.factor: {getattr(self, 'factor', 1.0)} is not positive")

    @classmethod
    def default_choice_name(cls) -> str:
        return "default"


@RopeConfig.register_subclass("default")
@dataclass(frozen=True)
class DefaultRopeConfig(RopeConfig):
    """Rotary positions with all frequencies divided by ``factor``.

    ``factor``: 1 for none, above 1 to stretch positions (Chen et al. 2023).
    """

    factor: float = 1.0


@RopeConfig.register_subclass("linear")
@dataclass(frozen=True)
class LinearRopeConfig(DefaultRopeConfig):
    """The same under Hugging Face's name."""


@RopeConfig.register_subclass("llama3")
@dataclass(frozen=True)
class Llama3RopeConfig(RopeConfig):
    """Llama 3.1's scaling.

    Wavelengths above ``original_max_position_embeddings / low_freq_factor`` positions are divided by ``factor``, those
    below ``original_max_position_embeddings / high_freq_factor`` are unchanged, and those between are interpolated.
    """

    theta: float = 500_000.0
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"model.rope.low_freq_factor: {self.low_freq_factor} is not between 0 and "
                f"model.rope.high_freq_factor ({self.high_freq_factor})"
            )
