"""The configuration: frozen dataclasses with Levanter's names.

Nothing here imports jax.
"""

from midstream_engine.config.adam_variants import AdoptConfig, CautiousConfig
from midstream_engine.config.averaging import EmaConfig, EmaDecaySqrtConfig, ModelAveragingConfig
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.data import DataConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.lion import LionConfig
from midstream_engine.config.load import Loaded, from_mapping, load_config
from midstream_engine.config.model import Gpt2Config, LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.config.muon import MuonConfig
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig, SkipStepConfig
from midstream_engine.config.tracker import TensorboardConfig, TrackerConfig, WandbConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.config.trainer import CheckpointerConfig, TrainerConfig

__all__ = [
    "AdamConfig",
    "AdoptConfig",
    "BatchSchedule",
    "CautiousConfig",
    "CheckpointerConfig",
    "ConfigError",
    "DataConfig",
    "EmaConfig",
    "EmaDecaySqrtConfig",
    "Gpt2Config",
    "LionConfig",
    "LlamaConfig",
    "LmConfig",
    "Loaded",
    "ModelAveragingConfig",
    "MuonConfig",
    "NeoxConfig",
    "OptimizerConfig",
    "SkipStepConfig",
    "TensorboardConfig",
    "TrackerConfig",
    "TrainLmConfig",
    "TrainerConfig",
    "WandbConfig",
    "from_mapping",
    "load_config",
]
