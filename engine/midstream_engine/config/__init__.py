"""The configuration: frozen dataclasses with Levanter's names. Nothing here imports jax."""

from midstream_engine.config.data import DataConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import Loaded, from_mapping, load_config
from midstream_engine.config.model import Gpt2Config, LmConfig
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.config.trainer import CheckpointerConfig, TrainerConfig

__all__ = [
    "AdamConfig",
    "CheckpointerConfig",
    "ConfigError",
    "DataConfig",
    "Gpt2Config",
    "LmConfig",
    "Loaded",
    "OptimizerConfig",
    "TrainLmConfig",
    "TrainerConfig",
    "from_mapping",
    "load_config",
]
