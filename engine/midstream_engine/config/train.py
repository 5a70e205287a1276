"""The whole configuration of a training run, with Levanter's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream_engine.config.data import DataConfig
from midstream_engine.config.model import Gpt2Config, LmConfig
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.config.trainer import TrainerConfig

# What ``trainer.distributed`` says of a process that has not been started.
NOWHERE = {
    "coordinator_address": None,
    "num_processes": None,
    "process_id": None,
    "local_device_ids": [],
    "initialize_jax_distributed": False,
}


@dataclass(frozen=True)
class TrainLmConfig:
    """``data``, ``model``, ``trainer`` and ``optimizer``."""

    data: DataConfig = field(default_factory=DataConfig)
    model: LmConfig = field(default_factory=Gpt2Config)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as ``run.yaml`` holds it. ``trainer.root`` and the processes' places in
        ``trainer.distributed`` are left open: they belong to the machines, and the file travels."""
        value = draccus.encode(self)
        value["trainer"]["root"] = None
        value["trainer"]["distributed"] |= NOWHERE
        return value
