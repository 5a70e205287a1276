"""The complete configuration of a training run, with Levanter's names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream_engine.config.data import DataConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import Gpt2Config, LmConfig
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.config.trainer import TrainerConfig

# ``trainer.distributed`` of a process that has not been started.
NOWHERE = {
    "coordinator_address": None,
    "num_processes": None,
    "process_id": None,
    "local_device_ids": [],
    "initialize_jax_distributed": False,
}


@dataclass(frozen=True)
class TrainLmConfig:
    """Configuration of a training run.

    Has ``data``, ``model``, ``trainer``, ``optimizer``, and the objective beyond the cross-entropy.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: LmConfig = field(default_factory=Gpt2Config)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    # Weight of the z-loss: the square of the logarithm of the softmax's normaliser. Evaluations are without it.
    z_loss_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.z_loss_weight < math.inf:
            raise ConfigError(f"z_loss_weight: {self.z_loss_weight} is negative or no number")

    @property
    def positions(self) -> int:
        """Tokens of an example: ``seq_len``, and one more with the last position's target."""
        return self.model.seq_len + self.data.next_token

    def resolved(self) -> dict[str, Any]:
        """Return every value, defaults included, for ``run.yaml``.

        ``trainer.root`` and the processes' addresses in ``trainer.distributed`` are None: they belong to the machine,
        and the file is copied to others. ``trainer.load_checkpoint: false`` is None: it is about the run's first start.
        """
        value = draccus.encode(self)
        value["trainer"]["root"] = None
        value["trainer"]["load_checkpoint"] = self.trainer.load_checkpoint or None
        value["trainer"]["distributed"] |= NOWHERE
        return value
