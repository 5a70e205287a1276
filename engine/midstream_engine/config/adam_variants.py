"""Variants of Adam: ``optimizer`` with ``type: adopt`` or ``type: cautious``."""

from __future__ import annotations

from dataclasses import dataclass

from midstream_engine.config.optimizer import OptimizerConfig, check_ranges


@OptimizerConfig.register_subclass("adopt")
@dataclass(frozen=True)
class AdoptConfig(OptimizerConfig):
    """ADOPT in Levanter's form (Taniguchi et al. 2024).

    A gradient is divided by the root of the squares before it.
    """

    beta1: float = 0.9  # decay of the mean of divided gradients
    beta2: float = 0.95  # decay of the mean of squares
    epsilon: float = 1e-6  # added to the root of the second moment
    max_grad_norm: float | None = 1.0  # gradients are scaled down to it; None or 0: no clipping

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, decays=("beta1", "beta2"), sizes=("epsilon", "max_grad_norm"))


@OptimizerConfig.register_subclass("cautious")
@dataclass(frozen=True)
class CautiousConfig(OptimizerConfig):
    """Cautious AdamW (Liang et al. 2024).

    Adam whose update is zero where its sign is not the gradient's.
    """

    beta1: float = 0.95  # decay of the mean of gradients
    beta2: float = 0.95  # decay of the mean of their squares
    epsilon: float = 1e-8  # added to the root of the second moment, and to the part of the update that remains
    max_grad_norm: float | None = 1.0  # gradients are scaled down to it; None or 0: no clipping
    adamc_weight_decay: bool = False  # weight decay in proportion to the learning rate (AdamC, Defazio 2025)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, decays=("beta1", "beta2"), sizes=("epsilon", "max_grad_norm"))
