"""Muon: ``optimizer`` with ``type: muon``."""

from __future__ import annotations

from dataclasses import dataclass

from midstream_engine.config.errors import ConfigError
from midstream_engine.config.optimizer import OptimizerConfig, check_ranges

# Coefficients a, b, c of each iteration, used in turn. Jordan's; then those of https://github.com/NVIDIA-NeMo/Emerging-Optimizers.
COEFFICIENTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250), (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585), (1.8564, -1.2132, 0.3568), (1.8750, -1.2500, 0.3750),
    ),
    "aol": ((4.0098, -7.0585, 2.4635), (3.4585, -5.5479, 2.5959), (2.7573, -3.2939, 1.4254), (2.7215, -3.0494, 1.3169)),
}  # fmt: skip


@OptimizerConfig.register_subclass("muon")
@dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    """Muon for the blocks' matrices (Jordan et al. 2024), Adam for everything else.

    The momentum of a matrix is made orthogonal by Newton-Schulz iterations. ``learning_rate`` and ``weight_decay`` are
    those of the matrices.
    """

    adam_lr: float = 6e-4  # learning rate of Adam at the peak; it has the same schedule
    momentum: float = 0.95  # decay of the sum of gradients
    nesterov: bool = True  # look ahead along the momentum
    backend_steps: int = 5  # Newton-Schulz iterations
    adam_weight_decay: float | None = None  # of Adam; None: weight_decay
    beta1: float = 0.9  # of Adam: decay of the mean of gradients
    beta2: float = 0.95  # of Adam: decay of the mean of their squares
    epsilon: float = 1e-8  # of Adam: added to the root of the second moment
    muon_epsilon: float = 1e-8  # added to the norm that divides the momentum
    max_grad_norm: float | None = 1.0  # Adam's gradients are scaled down to it; None or 0: no clipping
    # false: an update is multiplied by sqrt(max(1, outputs / inputs)); true: by 0.2 sqrt(max(outputs, inputs)), so that
    # learning rates and decays of Adam fit (Liu et al. 2025).
    use_kimi_scaling: bool = False
    coefficient_type: str = "quintic"  # of the iterations: simple, quintic, polar_express or aol

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            decays=("momentum", "beta1", "beta2"),
            sizes=("epsilon", "muon_epsilon", "max_grad_norm", "adam_lr", "adam_weight_decay"),
        )
        if self.backend_steps < 1:
            raise ConfigError(f"optimizer.backend_steps: {self.backend_steps} is not positive")
        if not self.learning_rate > 0:
            raise ConfigError("optimizer.learning_rate: Muon needs one above 0, by which Adam's is scaled")
        if self.coefficient_type not in COEFFICIENTS:
            raise ConfigError(
                f"optimizer.coefficient_type: {self.coefficient_type!r} is not known; use one of "
                f"{', '.join(COEFFICIENTS)}"
            )
