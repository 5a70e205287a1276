"""Values of a run.yaml that a plan computes with.

The file is of a host, which may be damaged or hostile. The engine checks all of it, but only on the target.
"""

from __future__ import annotations

import math
from typing import cast

from midstream.errors import MidstreamError
from midstream.migrate.journal.json_values import section
from midstream_core.json_types import JsonObject, JsonValue, float_of, int_of, object_or_empty
from midstream_host.allowlist import shown

LARGEST = 1 << 31  # examples of a batch, steps, lengths of axes
_INTEGERS = {
    "model": (
        "num_layers",
        "hidden_dim",
        "seq_len",
        "intermediate_dim",
        "mlp_scale",
        "num_heads",
        "num_kv_heads",
        "head_dim",
    ),
    "trainer": ("num_train_steps", "per_device_parallelism"),
}
_AXES = ("fsdp_axis", "tensor_parallel_axes")
_MAPPINGS = ("axis_resources", "parameter_axis_resources", "compute_axis_resources")
_RATE = (
    "learning_rate", "cosine_exponent", "inv_sqrt_timescale", "polynomial_power", "inv_sqrt_decay_constant",
    "min_lr_ratio", "warmup", "decay", "rewarmup", "cooldown",
)  # fmt: skip
_CYCLES = ("cycles", "cycle_length")


def check_values(config: JsonObject, where: str) -> None:
    """Check the config values that the app reads: numbers, or names of axes.

    Absent values pass.

    Args:
        config: Content of run.yaml; its sections are mappings.
        where: File, for the message.

    Raises:
        MidstreamError: One is something else, or too large to compute with.
    """
    trainer, optimizer = section(config, "trainer"), section(config, "optimizer")
    expected = [
        (f"{section_name}.{name}", section(config, section_name), _is_integer)
        for section_name, names in _INTEGERS.items()
        for name in names
    ]
    expected += [("trainer.model_axis_size", trainer, _is_positive), ("trainer.train_batch_size", trainer, _is_batch)]
    expected += [(f"trainer.{name}", trainer, _is_names) for name in _AXES]
    expected += [(f"trainer.{name}", trainer, _is_mapping) for name in _MAPPINGS]
    expected += [("trainer.batch_axis", trainer, _is_text)]
    expected += [(f"optimizer.{name}", optimizer, _is_number) for name in _RATE]
    expected += [(f"optimizer.{name}", optimizer, _is_numbers) for name in _CYCLES]
    for name, values, fits in expected:
        value = values.get(name.partition(".")[2])
        if value is not None and not fits(value):
            raise MidstreamError(
                f"{where}: {name} is {shown(repr(value)[:100])}, which no run can have",
                "the run directory needs its run.yaml",
            )


def _is_integer(value: JsonValue, least: int = -1) -> bool:
    try:
        return least <= int_of(value) <= LARGEST
    except (TypeError, ValueError, OverflowError):
        return False


def _is_positive(value: JsonValue) -> bool:
    return _is_integer(value, 1)


def _is_batch(value: JsonValue) -> bool:
    if not isinstance(value, list):
        return _is_positive(value)
    entries = [object_or_empty(entry) for entry in value]
    return bool(entries) and all(_is_integer(e.get("start"), 0) and _is_positive(e.get("value")) for e in entries)


def _is_number(value: JsonValue) -> bool:
    try:
        return math.isfinite(float_of(value)) and abs(float_of(value)) <= LARGEST
    except (TypeError, ValueError, OverflowError):
        return False


def _is_numbers(value: JsonValue) -> bool:
    return all(map(_is_number, value)) if isinstance(value, list) else _is_number(value)


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str)


def _is_mapping(value: JsonValue) -> bool:
    if not isinstance(value, dict):
        return False
    entries = cast("dict[object, JsonValue]", value).items()
    return all(isinstance(axis, str) and (names is None or _is_names(names)) for axis, names in entries)


def _is_names(value: JsonValue) -> bool:
    if isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    return isinstance(value, str)
