"""The optimizer: ``optimizer`` of the configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import draccus

from midstream_core.learning_rate import RULES, SHAPES
from midstream_engine.config.errors import ConfigError

MU_DTYPES, NU_DTYPES = ("float32", "bfloat16", "float16"), ("float32", "bfloat16")
MAX_INTERVAL = 1_000_000  # of rolling statistics: each update reads all of them
_BFLOAT16_STEP = 1 / 256  # a smaller part of any number may be rounded away


@dataclass(frozen=True)
class SkipStepConfig:
    """Skipping of updates with an unusually high loss or gradient norm.

    An update is skipped if either is far above the recent ones (OLMo, Groeneveld et al. 2024).
    """

    rolling_interval_length: int = 128  # recent losses and norms
    sigma_factor: float = 6.0  # standard deviations above their mean from which an update is skipped

    def __post_init__(self) -> None:
        if not 2 <= self.rolling_interval_length <= MAX_INTERVAL or not self.sigma_factor > 0:
            raise ConfigError(
                f"optimizer.skip_bad_steps: rolling_interval_length is at least 2 and at most {MAX_INTERVAL:,}, "
                "sigma_factor above 0"
            )


@dataclass(frozen=True)
class ClipUpdateNormConfig:
    """Limit the norm of an update by the norms of the recent ones."""

    rolling_interval_length: int = 128  # recent norms; half of them have to be known
    sigma_factor: float = 3.0  # standard deviations above their mean

    def __post_init__(self) -> None:
        if not 2 <= self.rolling_interval_length <= MAX_INTERVAL or not self.sigma_factor >= 0:
            raise ConfigError(
                f"optimizer.clip_update_norm: rolling_interval_length is at least 2 and at most {MAX_INTERVAL:,}, "
                "sigma_factor not negative"
            )


@dataclass(frozen=True)
class OptimizerConfig(draccus.ChoiceRegistry):
    """Fields of every optimizer: the learning-rate schedule and weight decay.

    ``warmup``, ``decay`` and ``rewarmup`` are a fraction of their cycle up to 1, a number of steps above it.
    """

    learning_rate: float = 1e-4  # at the peak
    weight_decay: float = 0.0  # decoupled
    # The shape of the decay: constant, linear, cosine, inv, inv_sqrt, polynomial or inv_sqrt_decay.
    lr_schedule: str = "cosine"
    cosine_exponent: float = 1.0  # of the cosine's curve between the peak and its end
    inv_sqrt_timescale: float = 10_000.0  # updates, warmup included, after which inv_sqrt begins to fall
    polynomial_power: float = 2.0  # of polynomial: 1 is linear, above 1 falls early, below 1 late
    inv_sqrt_decay_constant: float = 28.6  # c of inv_sqrt_decay: 1 / sqrt(1 + c * part of the decay)
    min_lr_ratio: float = 0.1  # end of the decay, as a fraction of the peak
    warmup: float = 0.01  # of the first cycle: a fraction or steps
    decay: float | None = None  # a fraction or steps; None: everything after the warmup
    rewarmup: float = 0.0  # the warmup of the later cycles: a fraction or steps
    cycles: Any = None  # a number of cycles, or the steps at which they end
    cycle_length: Any = None  # steps, a fraction of the run, or a list of steps
    cooldown: float | None = None  # a linear decay after the last cycle: a fraction of the run or steps; None: none
    # levanter-0.2, or levanter-1.2: a warmup and a decay longer than their cycle overlap.
    schedule_rules: str = "levanter-0.2"
    # Arrays that decay: parts of their names, or a regular expression; None: all but norms, embeddings and biases.
    weight_decay_modules: Any = None
    # Whether the rule of None also applies with weight_decay_modules; false without modules: every array decays.
    default_weight_decay_mask: bool | None = None
    # Skip outliers: true, a window's length, or {rolling_interval_length, sigma_factor}.
    skip_bad_steps: Any = False

    def __post_init__(self) -> None:
        self._check_schedule()
        for name in ("learning_rate", "weight_decay", "min_lr_ratio"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"optimizer.{name}: {getattr(self, name)} is negative or no number")
        self._check_cycles()
        self._check_modules()
        self.skip_step()
        if getattr(self, "adamc_weight_decay", False) and not self.learning_rate > 0:
            raise ConfigError("optimizer.adamc_weight_decay: needs a learning_rate above 0")

    def _check_schedule(self) -> None:
        for name, choices in (("lr_schedule", SHAPES), ("schedule_rules", RULES)):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"optimizer.{name}: {value!r} is not known; use one of {', '.join(choices)}")
        for name in ("cosine_exponent", "inv_sqrt_timescale", "polynomial_power", "inv_sqrt_decay_constant"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"optimizer.{name}: {getattr(self, name)} is not positive")
        for name in ("warmup", "rewarmup", "decay", "cooldown"):
            value = getattr(self, name)
            if value is None:
                continue
            if not 0 <= value < math.inf:
                raise ConfigError(f"optimizer.{name}: {value} is negative or no number")
            if value > 1 and value % 1:
                raise ConfigError(
                    f"optimizer.{name}: {value} is neither a fraction up to 1 nor an integer number of steps"
                )
        if self.lr_schedule == "inv" and self.min_lr_ratio == 0:
            raise ConfigError("optimizer.min_lr_ratio: lr_schedule 'inv' needs one above 0, its curve never reaches 0")

    def _check_cycles(self) -> None:
        cycles, length = self.cycles, self.cycle_length
        if cycles is not None and length is not None:
            raise ConfigError("optimizer.cycles and optimizer.cycle_length exclude each other: remove one")
        if isinstance(cycles, list):
            sound = all(end == 0 or _is_steps(end) for end in cycles)  # with 0 the first cycle is empty
        else:
            sound = cycles is None or _is_steps(cycles)
        if not sound:
            raise ConfigError(f"optimizer.cycles: {cycles!r} is neither a positive number nor a list of steps")
        if isinstance(length, list):
            sound = all(map(_is_steps, length))
        else:
            sound = length is None or (_positive(length) and (length <= 1 or length % 1 == 0))
        if not sound:
            raise ConfigError(f"optimizer.cycle_length: {length!r} is neither a fraction, steps nor a list of steps")

    def _check_modules(self) -> None:
        modules = self.weight_decay_modules
        if isinstance(modules, str):
            try:
                re.compile(modules)
            except re.error as error:
                raise ConfigError(
                    f"optimizer.weight_decay_modules: {modules!r} is no regular expression: {error}"
                ) from None
        elif modules is not None and not (
            isinstance(modules, list) and all(isinstance(module, str) for module in modules)
        ):
            raise ConfigError(
                f"optimizer.weight_decay_modules: {modules!r} is neither a regular expression nor a list of names"
            )

    @classmethod
    def default_choice_name(cls) -> str:
        return "adam"

    def skip_step(self) -> SkipStepConfig | None:
        """Return the meaning of ``skip_bad_steps``; None: no update is skipped."""
        value = self.skip_bad_steps
        if value is None or value is False or value == 0:  # Levanter's dumps have 0 for false
            return None
        if value is True:
            return SkipStepConfig()
        if isinstance(value, int):
            return SkipStepConfig(value)
        names = {"rolling_interval_length", "sigma_factor"}
        if not isinstance(value, dict) or not set(value) <= names:
            raise ConfigError(f"optimizer.skip_bad_steps: {value!r} is neither true, a length nor {sorted(names)}")
        length, factor = value.get("rolling_interval_length", 128), value.get("sigma_factor", 6.0)
        if not _is_steps(length) or not _positive(factor):
            raise ConfigError(
                f"optimizer.skip_bad_steps: {value!r}: rolling_interval_length is a number of steps, sigma_factor a "
                "positive number"
            )
        return SkipStepConfig(int(length), float(factor))

    def warnings(self) -> list[str]:
        """Return lines about valid values that are probably mistakes."""
        lines = [
            f"optimizer.{name}: {getattr(self, name):g} means 100 % of the cycle, not one step"
            for name in ("warmup", "rewarmup")
            if getattr(self, name) == 1
        ]
        if isinstance(self.cycles, list) and self.cycles[:1] == [0]:
            lines.append(
                "optimizer.cycles: begins with 0: the first cycle is empty, so rewarmup applies and not warmup"
            )
        return lines


@OptimizerConfig.register_subclass("adam")
@dataclass(frozen=True)
class AdamConfig(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    beta1: float = 0.9  # decay of the mean of gradients
    beta2: float = 0.95  # decay of the mean of their squares
    epsilon: float = 1e-8  # added to the root of the second moment
    max_grad_norm: float | None = 1.0  # gradients are scaled down to it; None or 0: no clipping
    nesterov: bool = False  # look ahead along the momentum (Dozat 2016)
    mu_dtype: str = "float32"  # stored mean of gradients: float32, bfloat16 or float16
    nu_dtype: str = "float32"  # stored mean of their squares: float32 or bfloat16
    # Each array's update, and each layer's, is scaled down to this root mean square (Shazeer & Stern 2018); None: not.
    update_rms_clipping: float | None = None
    # The norm of the update is limited by recent norms: mean + sigma_factor standard deviations; None: not.
    clip_update_norm: ClipUpdateNormConfig | None = None
    adamc_weight_decay: bool = False  # weight decay in proportion to the learning rate (AdamC, Defazio 2025)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu_dtype not in MU_DTYPES:
            raise ConfigError(f"optimizer.mu_dtype: {self.mu_dtype!r}: use one of {', '.join(MU_DTYPES)}")
        if self.nu_dtype not in NU_DTYPES:
            raise ConfigError(
                f"optimizer.nu_dtype: {self.nu_dtype!r}: use one of {', '.join(NU_DTYPES)}; squares of gradients are "
                "below float16's smallest number"
            )
        check_ranges(self, decays=("beta1", "beta2"), sizes=("epsilon", "max_grad_norm"))
        if self.update_rms_clipping is not None and not self.update_rms_clipping > 0:
            raise ConfigError(f"optimizer.update_rms_clipping: {self.update_rms_clipping} is not positive")
        if self.update_rms_clipping is not None and self.clip_update_norm is not None:
            raise ConfigError(
                "optimizer.update_rms_clipping and optimizer.clip_update_norm exclude each other: remove one"
            )

    def warnings(self) -> list[str]:
        """Return lines about valid values that are probably mistakes."""
        lines = super().warnings()
        if self.nu_dtype == "bfloat16" and 1 - self.beta2 < _BFLOAT16_STEP:
            lines.append(
                f"optimizer.nu_dtype: with beta2 {self.beta2:g} an update changes nu by less than bfloat16 can store: "
                "it does not fall any more (hint: float32)"
            )
        return lines


def check_ranges(config: OptimizerConfig, *, decays: Sequence[str], sizes: Sequence[str]) -> None:
    """Check the ranges of the fields ``decays`` and ``sizes``.

    ``decays`` must be in [0, 1), ``sizes`` None or not negative.

    Raises:
        ConfigError: One is not.
    """
    for name in decays:
        if not 0 <= getattr(config, name) < 1:
            raise ConfigError(f"optimizer.{name}: {getattr(config, name)} is not in [0, 1)")
    for name in sizes:
        value = getattr(config, name)
        if value is not None and not value >= 0:
            raise ConfigError(f"optimizer.{name}: {value} is negative")


def _is_steps(value: Any) -> bool:
    return _positive(value) and value % 1 == 0


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
