"""Where and for how long it is trained: ``trainer`` of the configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from midstream_engine.checkpoint.policy import KeepEvery, KeepPolicy
from midstream_engine.config.errors import ConfigError

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
_UNITS |= {"h": 3600.0, "hour": 3600.0}
_POLICY_PARTS = ("p", "params", "c", "compute", "o", "output")
_DTYPES = ("f32", "float32", "full", "bf16", "bfloat16", "f16", "float16", "half")


def seconds(text: str | float, where: str) -> float:
    """``"15m"``, ``"90s"``, ``"1 hour"`` or plain seconds, in seconds."""
    match = _DURATION.fullmatch(str(text).lower())
    unit = _UNITS.get(match[2].removesuffix("s") or match[2]) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{where}: {text!r} is no duration; write 90s, 15m or 1h")
    return float(match[1]) * unit


@dataclass(frozen=True)
class CheckpointerConfig:
    """When to save. Time-based checkpoints are temporary, step-based ones are kept."""

    save_interval: str = "15m"
    keep: list[KeepEvery] = field(default_factory=lambda: [KeepEvery(10_000)])

    def __post_init__(self) -> None:
        try:
            self.policy()
        except ValueError as error:
            raise ConfigError(f"trainer.checkpointer: {error}") from None

    def policy(self) -> KeepPolicy:
        """The same as the checkpoints' own rules."""
        return KeepPolicy(seconds(self.save_interval, "trainer.checkpointer.save_interval"), tuple(self.keep))


@dataclass(frozen=True)
class TrainerConfig:
    """The run, its devices and its rhythm. Units: steps, examples, devices."""

    id: str | None = None  # the run's id; None: $RUN_ID, then eight random letters
    root: str | None = None  # None: $MIDSTREAM_ROOT, then ~/.midstream
    seed: int = 0
    num_train_steps: int = 400_000
    train_batch_size: int = 32
    per_device_parallelism: int = -1  # examples a device at a time; -1: all of its share at once
    per_device_eval_parallelism: int = -1  # -1: like per_device_parallelism
    steps_per_eval: int = 1000
    max_eval_batches: int | None = None  # None: all of the validation set
    mp: str = "f32"

    batch_axis: str = "batch"
    fsdp_axis: list[str] = field(default_factory=lambda: ["embed"])
    tensor_parallel_axes: list[str] = field(default_factory=list)
    model_axis_size: int = 1
    axis_resources: dict[str, list[str]] = field(default_factory=dict)
    parameter_axis_resources: dict[str, list[str]] = field(default_factory=dict)
    compute_axis_resources: dict[str, list[str]] = field(default_factory=dict)

    # None: the newest checkpoint of the run where there is one; true: there must be one; false: start afresh unless the
    # run has a checkpoint of its own.
    load_checkpoint: bool | None = None
    load_checkpoint_path: str | None = None
    checkpointer: CheckpointerConfig = field(default_factory=CheckpointerConfig)
    crash_on_nan: bool = True
    crash_on_inf: bool = True
    jax_compilation_cache_dir: str | None = None  # None: <root>/compile-cache
    jax_config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_train_steps", "train_batch_size", "steps_per_eval", "model_axis_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is not positive")
        for name in ("per_device_parallelism", "per_device_eval_parallelism"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is neither positive nor -1 (all at once)")
        for part in self.mp.split(","):
            key, _, dtype = part.strip().rpartition("=")
            if (key and key not in _POLICY_PARTS) or dtype not in _DTYPES:
                raise ConfigError(
                    f"trainer.mp: {self.mp!r} is no precision policy; write f32, bfloat16 or p=f32,c=bfloat16"
                )

    def resolved_root(self) -> str:
        """The directory under which runs lie, absolute."""
        root = self.root or os.environ.get("MIDSTREAM_ROOT") or "~/.midstream"
        return os.path.abspath(os.path.expanduser(root))
