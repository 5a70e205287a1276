"""MaxText's configuration as ours: its log of it, a dump, or a YAML file.

Its checkpoints have neither heads of rotary positions, nor optimizer settings, nor the schedule.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping

from midstream_core.json_types import JsonValue
from midstream_core.maxtext_checkpoints import CONFIGS, logged_settings
from midstream_core.precision import maxtext_products
from midstream_engine.config import yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LlamaConfig
from midstream_engine.config.rope import DefaultRopeConfig, Llama3RopeConfig, RopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import encoded_model
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue

HINT = "what MaxText logs with log_config=true has all of them"
SCALED, UNSCALED = "qwen2", "llama2"  # decoder_block by whether scores are divided by the root of head_dim
_CHOICE = re.compile(r"[A-Z][A-Za-z]+\.[A-Z0-9_]+")
# Settings of which one value is read, where they are named; it is the default of MaxText 0.2.5.
_ONLY: Mapping[str, tuple[ForeignValue, ...]] = {
    "opt_type": ("adamw",), "adam_eps_root": (0,), "skip_step_on_spikes": (False,), "trainable_parameters_mask": ([],),
    "dropout_rate": (0,), "mlp_activations": (["silu", "linear"],), "mlp_activations_limit": (-1,),
    "attention_type": ("global",), "attn_logits_soft_cap": (None, 0), "final_logits_soft_cap": (None, 0),
    "fused_qkv": (False,), "fused_mlp": (False,), "use_qk_norm": (False,), "attention_bias": (False,),
    "num_experts": (1,), "mtp_num_layers": (0,), "use_post_attn_norm": (False,), "use_post_ffw_norm": (False,),
    "rope_min_timescale": (1,), "use_mrope": (False,), "enable_rampup_batch_size": (False,), "enable_diloco": (False,),
    "quantization": ("", "none", None), "use_qk_clip": (False,), "grad_dtype": ("float32",),
    "training_objective": ("causal_lm",),
}  # fmt: skip
# Settings that are read, and have to be named.
NEEDED = (
    "decoder_block", "normalization_layer_epsilon", "rope_type", "rope_max_timescale", "logits_via_embedding",
    "max_target_length", "global_batch_size_to_train_on", "dtype", "weight_dtype", "steps", "learning_rate",
    "learning_rate_schedule_steps", "lr_schedule_type", "learning_rate_final_fraction", "warmup_steps_fraction",
    "adam_b1", "adam_b2", "adam_eps", "adam_weight_decay", "gradient_clipping_threshold",
)  # fmt: skip
_SHAPES = ("cosine", "wsd")


def read_config(directory: str, given: str | None) -> dict[str, ForeignValue]:
    """Return MaxText's settings by name.

    Args:
        directory: Of the checkpoint; a ``maxtext.yml`` there or above it is read.
        given: Path of a file: a log with ``Config param NAME: VALUE``, JSON or YAML.

    Raises:
        ConversionError: There is none, it is damaged, or a setting is missing or has a value that is not read.
    """
    candidates = [given] if given else [os.path.join(directory, place) for place in CONFIGS]
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is None:
        raise ConversionError(
            f"{given or directory}: the run's configuration is missing (hint: --config names MaxText's log, with "
            "log_config=true, or a YAML file of its settings)"
        )
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            logged = {name: _value(text) for name, text in logged_settings(file).items()}
        settings: object = logged or yaml_file.load(path)
    except (ConfigError, OSError) as error:
        raise ConversionError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(settings, dict):
        raise ConversionError(f"{path}: expected keys and values")
    settings = plain_settings(settings)
    lacking = [name for name in NEEDED if settings.get(name) is None]
    if lacking:
        raise ConversionError(f"{path}: lacks {', '.join(lacking[:10])} (hint: {HINT})")
    for name, values in _ONLY.items():
        if name in settings and settings[name] not in values:
            raise ConversionError(f"{path}: {name}: {settings[name]!r} has no counterpart; {values[0]!r} is read")
    return settings


def plain_settings(settings: ForeignConfig) -> dict[str, ForeignValue]:
    """Return settings with the words of choices.

    A log has them as ``DecoderBlockType.LLAMA2``.
    """
    return {name: value.rpartition(".")[2].lower() if isinstance(value, str) and _CHOICE.fullmatch(value) else value
            for name, value in settings.items()}  # fmt: skip


def _value(text: str) -> ForeignValue:
    """Return a value of a log, which has Python's form."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text.strip()


def translate(settings: ForeignConfig, shapes: Mapping[str, int], notes: list[str]) -> dict[str, ForeignValue]:
    """Return our mapping of MaxText's settings.

    Args:
        settings: Those of ``read_config``.
        shapes: Fields of our model that the arrays show, by name.
        notes: Gets a line for each choice.

    Raises:
        ConversionError: A value has no counterpart.
    """
    try:
        total = schedule_steps(settings)
        model = _model(settings, shapes)
        trainer: dict[str, JsonValue] = {
            "num_train_steps": total, "train_batch_size": int(settings["global_batch_size_to_train_on"]),
            "mp": f"p={settings['weight_dtype']},c={settings['dtype']}",
            "seed": int(settings.get("data_shuffle_seed") or 0),
            "matmul_precision": maxtext_products(settings.get("matmul_precision")),
        }  # fmt: skip
        optimizer: dict[str, ForeignValue] = {
            "type": "adam", "learning_rate": float(settings["learning_rate"]), "beta1": float(settings["adam_b1"]),
            "beta2": float(settings["adam_b2"]), "epsilon": float(settings["adam_eps"]),
            "weight_decay": float(settings["adam_weight_decay"]),
            "max_grad_norm": float(settings["gradient_clipping_threshold"]) or None,
            "min_lr_ratio": float(settings["learning_rate_final_fraction"]), **_schedule(settings, total),
        }  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ConversionError(f"MaxText's configuration: {error}"[:300]) from None
    if total < int(settings["steps"]):
        notes.append(f"steps: {settings['steps']}; from update {total} on the rate there is 0: the run ends before it")
    elif total > int(settings["steps"]):
        notes.append(f"steps: {settings['steps']}; the schedule's {total} updates are the run's here")
    z_loss = float(settings.get("z_loss_multiplier") or 0.0)
    return {
        "model": encoded_model(model), "optimizer": optimizer, "trainer": trainer,
        **({"z_loss_weight": z_loss} if z_loss else {}),
    }  # fmt: skip


def rate_of(settings: ForeignConfig) -> Callable[[int], float]:
    """Return MaxText's learning rate by the number of updates before.

    Source: ``create_learning_rate_schedule`` of MaxText 0.2.5.
    """
    total, peak = schedule_steps(settings), float(settings["learning_rate"])
    final = peak * float(settings["learning_rate_final_fraction"])
    warmup, decay, shape = _parts(settings, total)

    def rate(count: int) -> float:
        if count < warmup:
            return peak * count / warmup
        if count >= total:
            return 0.0
        if not decay or count < total - decay:
            return peak
        done = min((count - (total - decay)) / (decay - 1), 1.0) if decay > 1 else 1.0 if shape == "cosine" else 0.0
        factor = 0.5 * (1 + math.cos(math.pi * done)) if shape == "cosine" else 1 - done
        return final + (peak - final) * factor

    return rate


def schedule_steps(settings: ForeignConfig) -> int:
    """Return the updates of the schedule."""
    steps = int(settings["learning_rate_schedule_steps"])
    return int(settings["steps"]) if steps == -1 else steps


def neighbours(settings: ForeignConfig) -> bool:
    """Return whether rotary positions turn neighbours of a head."""
    # A log has the name of the choice, RopeType.LLAMA3_1.
    kinds = ("llama3.1", "llama3_1")
    return str(settings["rope_type"]).startswith(kinds) or str(settings.get("model_name")).startswith(kinds[0])


def _parts(settings: ForeignConfig, total: int) -> tuple[int, int, str]:
    """Return the updates of warmup and decay, and the decay's shape."""
    kind = str(settings["lr_schedule_type"])
    if kind not in _SHAPES:
        raise ConversionError(f"lr_schedule_type: {kind} has no counterpart; {' and '.join(_SHAPES)} are read")
    warmup = int(total * float(settings["warmup_steps_fraction"]))
    if kind == "cosine":
        return warmup, total - warmup, kind
    decay = int(total * float(settings.get("wsd_decay_steps_fraction", 0.1)))
    return warmup, decay, str(settings.get("wsd_decay_style", "linear"))


def _schedule(settings: ForeignConfig, total: int) -> dict[str, ForeignValue]:
    """Return our schedule.

    A decay of N updates there reaches its end in the last of them, ours would in the one after it: that last update is
    our cooldown.
    """
    warmup, decay, shape = _parts(settings, total)
    last = 1 if decay > 1 else 0
    cycle = total - last
    schedule: dict[str, ForeignValue] = {
        "lr_schedule": shape if decay else "constant", "warmup": _steps(warmup, cycle),
        "decay": _steps(max(decay - last, 0), cycle),
    }  # fmt: skip
    return schedule | ({"cooldown": _steps(1, total)} if last else {})


def _steps(count: int, cycle: int) -> float:
    """Return a number of updates as our schedule has it.

    There 1 and less is a fraction of ``cycle``.
    """
    return float(count) if count != 1 else 1.5 / max(cycle, 2)


def _model(settings: ForeignConfig, shapes: Mapping[str, int]) -> LlamaConfig:
    block = str(settings["decoder_block"])
    if block not in (SCALED, UNSCALED):
        raise ConversionError(f"decoder_block: {block} has no counterpart; {UNSCALED} and {SCALED} are read")
    tied = bool(settings["logits_via_embedding"])
    if tied and settings.get("normalize_embedding_logits", True):
        raise ConversionError(
            "normalize_embedding_logits: True has no counterpart: logits are not divided by the root of emb_dim here"
        )
    model = LlamaConfig(
        seq_len=int(settings["max_target_length"]), layer_norm_epsilon=float(settings["normalization_layer_epsilon"]),
        rope=_rope(settings), tie_word_embeddings=tied, scale_attention=block == SCALED,
    )  # fmt: skip
    return dataclasses.replace(model, **shapes)


def _rope(settings: ForeignConfig) -> RopeConfig:
    theta, kind = float(settings["rope_max_timescale"]), str(settings["rope_type"])
    if neighbours(settings):
        if settings.get("rope_use_scale", True):
            return Llama3RopeConfig(theta, 8.0, 1.0, 4.0, 8192)
        return DefaultRopeConfig(theta)
    if kind != "default":
        raise ConversionError(f"rope_type: {kind} has no counterpart; default and llama3.1 are read")
    return DefaultRopeConfig(theta, float(settings.get("rope_linear_scaling_factor", 1.0)))
