"""Run, devices and duration of training: ``trainer`` of the configuration."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

from midstream_core.object_store.urls import FORMS
from midstream_core.precision import DEFAULT, HIGHEST, JAX_OPTION, Precision
from midstream_engine.config.averaging import ModelAveragingConfig
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.config.tracker import TrackerConfig

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)[\s,]*")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
_UNITS |= {"h": 3600.0, "hr": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0, "w": 604800.0, "week": 604800.0}
_ROUNDED = {"bfloat16": 512, "float16": 4096}  # a change below this part of a number is rounded away
# Options of jax that may have one value, which has no effect. ``models.random_keys`` has the reason.
_OPTIONS = {"jax_default_prng_impl": "threefry2x32", "jax_threefry_partitionable": True}
# Axes of arrays and activations that may be sharded.
AXES = ("batch", "embed", "head_size", "heads", "key_position", "kv_heads", "layers", "mlp", "position", "vocab")


def seconds(text: str | float, where: str) -> float:
    """Convert a duration to seconds.

    The text is ``"15m"``, ``"90s"``, ``"1 hour"``, ``"4d4h"`` or plain seconds.

    Raises:
        ConfigError: The text is no duration.
    """
    rest, total = str(text).strip().lower(), 0.0
    while match := _DURATION.match(rest):
        unit = _UNITS.get(match[2].removesuffix("s") or match[2])
        if unit is None or (not match[2] and match[0] != str(text).strip()):
            break
        rest, total = rest[match.end() :], total + float(match[1]) * unit
        if not rest:
            return total
    raise ConfigError(f"{where}: {text!r} is no duration (hint: 90s, 15m, 1h or 1d12h)")


@dataclass(frozen=True)
class CheckpointerConfig:
    """When to save. Time-based checkpoints are temporary, step-based ones are kept."""

    save_interval: str | None = "15m"  # between temporary checkpoints: 90s, 15m, 1d12h; None: there are none
    # Permanent ones: [{every: STEPS, until: STEP}, ...]; the last entry may omit until.
    keep: list[KeepEvery] = field(default_factory=lambda: [KeepEvery(10_000)])
    # gs://BUCKET/PREFIX or s3://BUCKET/PREFIX: checkpoints are there, under runs/<id>/checkpoints; other files stay
    # under trainer.root
    base_path: str | None = None

    def __post_init__(self) -> None:
        if self.base_path is not None and not re.fullmatch(r"(gs|s3)://[^/]{3,}(/.*)?", self.base_path):
            raise ConfigError(f"trainer.checkpointer.base_path: {self.base_path!r}: write {FORMS}")
        try:
            self.policy()
        except ValueError as error:
            raise ConfigError(f"trainer.checkpointer: {error}") from None

    def policy(self) -> KeepPolicy:
        """Return the policy of these values."""
        if self.save_interval is None:
            return KeepPolicy(math.inf, tuple(self.keep))
        return KeepPolicy(seconds(self.save_interval, "trainer.checkpointer.save_interval"), tuple(self.keep))


@dataclass(frozen=True)
class TrainerConfig:
    """The run, its devices, and its intervals. Units: steps, examples, devices."""

    id: str | None = None  # the run's id; None: $RUN_ID, then eight random letters
    root: str | None = None  # directory of all runs; None: $MIDSTREAM_ROOT, then ~/.midstream
    seed: int = 0  # of initialisation, data order and dropout
    num_train_steps: int = 400_000  # updates of the complete run
    train_batch_size: Any = 32  # examples per update, or [{start: STEP, value: EXAMPLES}, ...]
    # Examples per device at a time, at most: the largest divisor of its share of the batch; -1: all of its share.
    per_device_parallelism: int = -1
    per_device_eval_parallelism: int = -1  # the same for evaluation; -1: like per_device_parallelism
    steps_per_eval: int = 1000  # updates between evaluations; one more at the end
    max_eval_batches: int | None = None  # None: all of the validation set
    mp: str = "f32"  # precision in jmp's notation: p=f32,c=bfloat16 has float32 parameters and computes in bfloat16
    # Of matrix products where mp computes in float32. highest: float32 on every device. default: the accelerator's own,
    # several times faster: TF32 on NVIDIA GPUs, bfloat16 on TPUs. mp: p=f32,c=bfloat16 is faster still.
    matmul_precision: str = HIGHEST
    # float32: gradients are summed over the batch and over devices in float32, twice the bytes of bfloat16, where mp
    # computes in less; None: in the precision of the computation.
    gradient_reduce_dtype: str | None = None
    model_averaging: ModelAveragingConfig | None = None  # an average of the model, evaluated instead of it; None: none

    tracker: list[TrackerConfig] = field(default_factory=list)  # besides metrics.jsonl: one, or a list of them
    log_dir: str | None = None  # logs are also written to <log_dir>/<run id>/; None: to the run directory alone

    batch_axis: str = "batch"  # the axis that is sharded over devices for data parallelism
    fsdp_axis: list[str] = field(default_factory=lambda: ["embed"])  # axes of parameters that are sharded over data
    tensor_parallel_axes: list[str] = field(default_factory=list)  # axes that are sharded over model
    model_axis_size: int = 1  # devices of the mesh axis model
    axis_resources: dict[str, list[str]] = field(default_factory=dict)  # axis -> mesh axes, for both mappings
    parameter_axis_resources: dict[str, list[str]] = field(
        default_factory=dict
    )  # the same, for stored parameters alone
    compute_axis_resources: dict[str, list[str]] = field(default_factory=dict)  # the same, for computation alone

    # None: the newest checkpoint of the run, if there is one; true: there must be one; false: begin at step 0, or with
    # initialize_from; refused where the run has checkpoints.
    load_checkpoint: bool | None = None
    load_checkpoint_path: str | None = None  # continue from this checkpoint, run or folder until the run has its own
    # Continue from this checkpoint, run or folder (a path, gs:// or s3://): model, optimizer, step and data order.
    initialize_from: str | None = None
    # Begin at step 0 with this checkpoint's model, and an optimizer and data of its own; a path, gs:// or s3://.
    initialize_model_from: str | None = None
    checkpointer: CheckpointerConfig = field(default_factory=CheckpointerConfig)  # when to save, and what is kept
    crash_on_nan: bool = True  # end the run if the loss or the state is NaN; false: go on, but save no such state
    crash_on_inf: bool = True  # the same for infinity
    require_accelerator: bool | None = None  # true: refuse to train on a CPU

    jax_compilation_cache_dir: str | None = None  # None: <root>/compile-cache; gs://..., s3://...: shared in a bucket
    jax_config: dict[str, Any] = field(default_factory=dict)  # names and values for jax.config.update
    # Options of the compiler for the step and the evaluation, over those that the engine sets for the accelerator; null
    # removes one. xla_tpu_*, xla_jf_*, xla_gpu_* and xla_cpu_* apply on their platform alone.
    compiler_options: dict[str, Any] = field(default_factory=dict)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)  # rendezvous of several processes

    profiler: bool = False  # write a trace for TensorBoard and Perfetto, once per attempt
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
        sources = ("load_checkpoint_path", "initialize_from", "initialize_model_from")
        given = [f"trainer.{name}" for name in sources if getattr(self, name)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} exclude each other: remove one")
        for name, value in self.compiler_options.items():
            if value is not None and not isinstance(value, bool | int | float | str):
                raise ConfigError(f"trainer.compiler_options.{name}: {value!r} is no number, text, true, false or null")
        if self.gradient_reduce_dtype not in (None, "f32", "float32"):
            raise ConfigError(
                f"trainer.gradient_reduce_dtype: {self.gradient_reduce_dtype!r} is neither float32 nor null "
                "(the precision of the computation)"
            )
        if self.matmul_precision not in (HIGHEST, DEFAULT):
            raise ConfigError(
                f"trainer.matmul_precision: {self.matmul_precision!r} is neither highest (float32) nor default (the "
                "accelerator's)"
            )
        self._check_jax_config()
        self.batch_schedule()
        for name in ("per_device_parallelism", "per_device_eval_parallelism"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ConfigError(f"trainer.{name}: {getattr(self, name)} is neither positive nor -1 (all at once)")
        try:
            self.precision()
        except ValueError as error:
            raise ConfigError(
                f"trainer.mp: {error}: no precision policy; write f32, bfloat16 or p=f32,c=bfloat16"
            ) from None

    def _check_jax_config(self) -> None:
        """Refuse options of jax that would change the training."""
        if JAX_OPTION in self.jax_config:  # a value with a counterpart was replaced when it was read
            raise ConfigError(
                f"trainer.jax_config.{JAX_OPTION}: {self.jax_config[JAX_OPTION]!r} has no exact "
                f"counterpart with trainer.mp: {self.mp} (hint: remove it; trainer.matmul_precision, highest or "
                "default, sets the precision of products of float32 numbers)"
            )
        for name, needed in _OPTIONS.items():
            if self.jax_config.get(name, needed) != needed:
                raise ConfigError(
                    f"trainer.jax_config.{name}: {str(self.jax_config[name]).lower()}: random numbers would depend on "
                    f"the devices; here it is {str(needed).lower()} (hint: remove it)"
                )

    def precision(self) -> Precision:
        """Return the element types that ``mp`` names."""
        return Precision.parse(self.mp)

    def precision_of_products(self) -> str | None:
        """Return jax's precision for matrix products; None: the accelerator's default."""
        return self.precision().of_products(self.matmul_precision)

    def warnings(self) -> list[str]:
        """Return lines about valid values that are probably mistakes."""
        return [*self._precision_warnings(), *self._axis_warnings()]

    def _precision_warnings(self) -> list[str]:
        precision, lines = self.precision(), []
        if re.search(r"\bhalf\b", self.mp):
            lines.append(f"trainer.mp: {self.mp}: half is float16 on every device (jmp: bfloat16 on TPUs)")
        if precision.parameters != "float32":
            kept = precision.with_parameters("float32")
            rounding = _ROUNDED[precision.parameters]
            lines.append(
                f"trainer.mp: parameters in {precision.parameters} lose updates below 1/{rounding} of their value; "
                f"{kept} keeps them"
            )
        return lines

    def _axis_warnings(self) -> list[str]:
        """Return a line for each axis that no model has."""
        named = {
            "fsdp_axis": self.fsdp_axis, "tensor_parallel_axes": self.tensor_parallel_axes,
            "axis_resources": self.axis_resources, "parameter_axis_resources": self.parameter_axis_resources,
            "compute_axis_resources": self.compute_axis_resources,
        }  # fmt: skip
        axis_names = {*AXES, self.batch_axis}
        return [
            f"trainer.{name}: no model here has an axis {axis!r} (they have {', '.join(AXES)}): it has no effect"
            for name, axes in named.items()
            for axis in axes
            if axis not in axis_names
        ]

    def batch_schedule(self) -> BatchSchedule:
        """Return the schedule of ``train_batch_size``.

        A resumed run keeps its past (``BatchSchedule.then``).
        """
        return BatchSchedule.of(self.train_batch_size)

    def resolved_root(self) -> str:
        """Return the directory of all runs, absolute."""
        root = self.root or os.environ.get("MIDSTREAM_ROOT") or "~/.midstream"
        return os.path.abspath(os.path.expanduser(root))
