"""Where and for how long it is trained: ``trainer`` of the configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from midstream_engine.checkpoint.saving.retention import KeepEvery, KeepPolicy
from midstream_engine.config.averaging import ModelAveragingConfig
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.tracker import TrackerConfig

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
_UNITS |= {"h": 3600.0, "hour": 3600.0}
_POLICY_PARTS = ("p", "params", "c", "compute", "o", "output")
# Axes of arrays and activations that devices may share.
AXES = ("batch", "embed", "head_size", "heads", "key_position", "kv_heads", "layers", "mlp", "position", "vocab")
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

    save_interval: str = "15m"  # between temporary checkpoints: 90s, 15m, 1h
    # Permanent ones: [{every: STEPS, until: STEP}, ...]; the last entry may leave out until.
    keep: list[KeepEvery] = field(default_factory=lambda: [KeepEvery(10_000)])
    # gs://BUCKET/PREFIX: checkpoints lie there, under runs/<id>/checkpoints; all else of a run stays under trainer.root
    base_path: str | None = None

    def __post_init__(self) -> None:
        if self.base_path is not None and not re.fullmatch(r"gs://[^/]{3,}(/.*)?", self.base_path):
            raise ConfigError(f"trainer.checkpointer.base_path: {self.base_path!r}: write gs://BUCKET/PREFIX")
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
    root: str | None = None  # where runs lie; None: $MIDSTREAM_ROOT, then ~/.midstream
    seed: int = 0  # of initialisation, data order and dropout
    num_train_steps: int = 400_000  # updates of the whole run
    train_batch_size: Any = 32  # examples an update, or [{start: STEP, value: EXAMPLES}, ...]
    per_device_parallelism: int = -1  # examples a device at a time; -1: all of its share at once
    per_device_eval_parallelism: int = -1  # the same for evaluation; -1: like per_device_parallelism
    steps_per_eval: int = 1000  # updates between evaluations; there is one at the end, too
    max_eval_batches: int | None = None  # None: all of the validation set
    mp: str = "f32"  # precision as jmp spells it: p=f32,c=bfloat16 keeps float32 parameters and computes in bfloat16
    model_averaging: ModelAveragingConfig | None = None  # an average of the model, evaluated in its place; None: none

    tracker: list[TrackerConfig] = field(default_factory=list)  # beside metrics.jsonl: one, or a list of them
    log_dir: str | None = None  # logs are also written to <log_dir>/<run id>/; None: to the run directory alone

    batch_axis: str = "batch"  # the axis that is cut over devices for data parallelism
    fsdp_axis: list[str] = field(default_factory=lambda: ["embed"])  # axes of parameters that are cut over data
    tensor_parallel_axes: list[str] = field(default_factory=list)  # axes that are cut over model
    model_axis_size: int = 1  # devices of the mesh axis model
    axis_resources: dict[str, list[str]] = field(default_factory=dict)  # axis -> mesh axes, for both mappings
    parameter_axis_resources: dict[str, list[str]] = field(default_factory=dict)  # the same, at rest alone
    compute_axis_resources: dict[str, list[str]] = field(default_factory=dict)  # the same, in computation alone

    # None: the newest checkpoint of the run where there is one; true: there must be one; false: start afresh unless the
    # run has a checkpoint of its own.
    load_checkpoint: bool | None = None
    load_checkpoint_path: str | None = None  # go on from this checkpoint, run or folder until the run has its own
    # A fresh run begins with this checkpoint's model, at step 0, with an optimizer and data of its own; path or gs://.
    initialize_from: str | None = None
    checkpointer: CheckpointerConfig = field(default_factory=CheckpointerConfig)  # when to save, and what stays
    crash_on_nan: bool = True  # end the run where the loss is NaN
    crash_on_inf: bool = True  # end the run where the loss is infinite
    require_accelerator: bool | None = None  # true: refuse to train on a CPU

    jax_compilation_cache_dir: str | None = None  # None: <root>/compile-cache; gs://...: that, shared through a bucket
    jax_config: dict[str, Any] = field(default_factory=dict)  # names and values for jax.config.update
    distributed: DistributedConfig = field(default_factory=DistributedConfig)  # how processes find each other

    profiler: bool = False  # write a trace for TensorBoard and Perfetto, once an attempt
    profiler_start_step: int = 5  # updates of the attempt before the trace begins
    profiler_num_steps: int = 100  # updates in the trace
    profiler_perfetto_link: bool = False  # also write perfetto_trace.json.gz, which ui.perfetto.dev opens

    def __post_init__(self) -> None:
        for name in ("num_train_steps", "steps_per_eval", "model_axis_size", "profiler_num_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is not positive")
        for name in ("max_eval_batches", "profiler_start_step"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is negative")
        if self.load_checkpoint_path and self.initialize_from:
            raise ConfigError("trainer.load_checkpoint_path and trainer.initialize_from exclude each other: remove one")
        self.batch_schedule()
        for name in ("per_device_parallelism", "per_device_eval_parallelism"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is neither positive nor -1 (all at once)")
        for part in self.mp.split(","):
            key, _, dtype = part.strip().rpartition("=")
            if (key and key not in _POLICY_PARTS) or dtype not in _DTYPES:
                raise ConfigError(
                    f"trainer.mp: {self.mp!r} is no precision policy; write f32, bfloat16 or p=f32,c=bfloat16"
                )

    def warnings(self) -> list[str]:
        """Lines about values that are legal and probably not meant: axes that no model has are cut over nothing."""
        named = {
            "fsdp_axis": self.fsdp_axis, "tensor_parallel_axes": self.tensor_parallel_axes,
            "axis_resources": self.axis_resources, "parameter_axis_resources": self.parameter_axis_resources,
            "compute_axis_resources": self.compute_axis_resources,
        }  # fmt: skip
        known = {*AXES, self.batch_axis}
        return [
            f"trainer.{name}: no model here has an axis {axis!r} (they have {', '.join(AXES)}): it cuts nothing"
            for name, axes in named.items()
            for axis in axes
            if axis not in known
        ]

    def batch_schedule(self) -> BatchSchedule:
        """What ``train_batch_size`` says; a run that goes on keeps its past (``BatchSchedule.then``)."""
        return BatchSchedule.of(self.train_batch_size)

    def resolved_root(self) -> str:
        """The directory under which runs lie, absolute."""
        root = self.root or os.environ.get("MIDSTREAM_ROOT") or "~/.midstream"
        return os.path.abspath(os.path.expanduser(root))
