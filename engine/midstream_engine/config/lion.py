"""Lion: ``optimizer`` with ``type: lion``."""

from __future__ import annotations

from dataclasses import dataclass

from midstream_engine.config.optimizer import OptimizerConfig, check_ranges


@OptimizerConfig.register_subclass("lion")
@dataclass(frozen=True)
class LionConfig(OptimizerConfig):
    """Lion (Chen et al. 2023), whose updates are signs.

    So the learning rate is a third to a tenth of Adam's.
    """

    beta1: float = 0.9  # weight of the momentum in the update
    beta2: float = 0.95  # decay of the momentum
    max_grad_norm: float | None = 1.0  # gradients are scaled down to it; None or 0: no clipping

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, decays=("beta1", "beta2"), sizes=("max_grad_norm",))
