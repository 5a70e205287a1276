"""Export of a run to MaxText: Orbax's checkpoint of a Llama, and its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import numpy as np
import yaml

from midstream_core.learning_rate import fraction_or_steps
from midstream_core.maxtext_checkpoints import STEPS
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.model import LlamaConfig
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.config.rope import DefaultRopeConfig, Llama3RopeConfig, RopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG, ExportedParameter, ExportedRun
from midstream_engine.interop.exported_settings import PLAIN_ADAMW, adam_of, batch_of, check_rates
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.huggingface.names import unpadded
from midstream_engine.interop.maxtext.configuration import SCALED, UNSCALED, rate_of
from midstream_engine.interop.maxtext.names import COUNTS, KINDS, ArrayRule, rules_of
from midstream_engine.interop.maxtext.orbax_writer import TreeArray, write_checkpoint

SETTINGS = "maxtext.yml"
_MAXTEXT = "MaxText 0.2.5"
_AXIS = 1  # of the layers: MaxText's default
_ADAM = {name: value for name, value in PLAIN_ADAMW.items() if name != "z_loss_weight"}
_LLAMA3 = Llama3RopeConfig(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write ``checkpoints/N`` and ``maxtext.yml``; see `Exporter`."""
    del options
    model = _model(run)
    adam = adam_of(run, _MAXTEXT, _ADAM)
    rope, neighbours = _rope(model.rope)
    rules = rules_of(model, neighbours=neighbours)
    settings = _settings(run, model, adam, rules) | rope
    check_rates(run, _MAXTEXT, rate_of(settings))
    step = max(run.step - 1, 0)  # its trainer names a checkpoint after the update before
    folder = os.path.join(STEPS, str(step))
    write_checkpoint(os.path.join(directory, folder), _arrays(run, rules), ["opt_state.1"], {"scan_layers": True})
    with open(os.path.join(directory, SETTINGS), "w", encoding="utf-8") as file:
        yaml.safe_dump(settings, file, sort_keys=False)
    batch = settings["global_batch_size_to_train_on"]
    notes = [
        f"the data is not in it: {run.step} batches of {batch} were read",
        f"{SETTINGS} has the settings that continue it: per_device_batch_size is that of one device, the batch is "
        f"{batch}",
        "it resumes from base_output_directory/run_name/checkpoints",
    ]
    if model.tie_word_embeddings and settings["dtype"] != "bfloat16":
        notes.append(f"logits_via_embedding: MaxText rounds the head to bfloat16 also in {settings['dtype']}")
    if {array.dtype for array in run.arrays.values()} & {"bfloat16", "float16"}:
        notes.append("arrays are there in their stored types; Orbax casts them to those of the model it loads into")
    return Exported([folder, SETTINGS], notes)


def _arrays(run: ExportedRun, rules: list[ArrayRule]) -> Iterator[TreeArray]:
    for name, count in zip(COUNTS, (run.step, run.optimizer_count, run.schedule_count), strict=True):
        yield TreeArray(name, "int32", (), iter([np.asarray(count, np.int32)]))
    for ours, theirs in KINDS.items():
        for rule in rules:
            held = run.parameters[rule.ours]
            shape = unpadded(held.axes, held.shape, run.vocab_size)
            if held.layers is not None:
                shape = (*shape[:_AXIS], held.layers, *shape[_AXIS:])
            name, dtype = theirs + rule.theirs.format(""), held.arrays[ours].dtype
            yield TreeArray(name, dtype, shape, _planes(run, rule, held, ours), _AXIS)


def _planes(run: ExportedRun, rule: ArrayRule, held: ExportedParameter, kind: str) -> Iterator[np.ndarray]:
    box = full_box(unpadded(held.axes, held.shape, run.vocab_size))
    for layer in range(held.layers or 1):
        yield rule.to_theirs(held.read(kind, layer, box))


def _model(run: ExportedRun) -> LlamaConfig:
    """Return the model. Raises ConversionError where MaxText has none like it."""
    model = run.config.model
    if not isinstance(model, LlamaConfig):
        raise ConversionError(f"model.type: {type(model).__name__} here, and {_MAXTEXT} gets a Llama")
    for name, value in (
        ("has_attention_bias", False), ("has_mlp_bias", False), ("use_layer_norm_weight", True),
        ("epsilon_outside_root", False), ("activation_function", "silu"),
    ):  # fmt: skip
        if getattr(model, name) != value:
            raise ConversionError(f"model.{name}: {getattr(model, name)!r} here, and {_MAXTEXT}'s Llama has {value!r}")
    expected = {*(kind + name for kind in KINDS for name in run.parameters), "key", "optimizer/adam/count",
             "optimizer/schedule/count"}  # fmt: skip
    unknown = sorted(run.arrays.keys() - expected)
    if unknown:
        raise ConversionError(f"{run.checkpoint}: {unknown[0]} has no counterpart in {_MAXTEXT}")
    return model


def _rope(rope: RopeConfig) -> tuple[dict[str, ForeignValue], bool]:
    """Return the settings of rotary positions, and whether they turn neighbours."""
    theta: ForeignValue = int(rope.theta) if rope.theta % 1 == 0 else rope.theta
    settings = {"rope_max_timescale": theta, "rope_min_timescale": 1}
    if isinstance(rope, DefaultRopeConfig):
        return settings | {"rope_type": "default", "rope_linear_scaling_factor": rope.factor}, False
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        here, there = getattr(rope, name), getattr(_LLAMA3, name)
        if here != there:
            raise ConversionError(f"model.rope.{name}: {here} here, and {_MAXTEXT}'s llama3.1 has {there}")
    return settings | {"rope_type": "llama3.1", "rope_use_scale": True}, True


def _settings(
    run: ExportedRun, model: LlamaConfig, adam: AdamConfig, rules: list[ArrayRule]
) -> dict[str, ForeignValue]:
    """Return MaxText's settings, without those of rotary positions."""
    trainer, precision, batch = run.config.trainer, run.config.trainer.precision(), batch_of(run, _MAXTEXT)
    still = [rule for rule in rules if not run.parameters[rule.ours].decays] if adam.weight_decay else []
    return {
        "base_config": "base.yml",
        "decoder_block": SCALED if model.scale_attention else UNSCALED, "use_qk_norm": False, "attention_bias": False,
        "base_emb_dim": model.hidden_dim, "base_num_query_heads": model.num_heads,
        "base_num_kv_heads": model.num_kv_heads, "head_dim": model.head_size, "base_mlp_dim": model.mlp_dim,
        "base_num_decoder_layers": model.num_layers, "vocab_size": run.vocab_size,
        "max_target_length": model.seq_len, "normalization_layer_epsilon": model.layer_norm_epsilon,
        "mlp_activations": ["silu", "linear"], "logits_via_embedding": model.tie_word_embeddings,
        "normalize_embedding_logits": False, "scan_layers": True, "param_scan_axis": _AXIS, "dropout_rate": 0.0,
        "dtype": precision.compute, "weight_dtype": precision.parameters, "grad_dtype": "float32",
        "mu_dtype": next(array.dtype for name, array in run.arrays.items() if name.startswith(EXP_AVG)),
        "matmul_precision": trainer.matmul_precision or "default",
        "per_device_batch_size": batch, "global_batch_size_to_train_on": batch, "data_shuffle_seed": trainer.seed,
        "opt_type": "adamw", "adam_b1": adam.beta1, "adam_b2": adam.beta2, "adam_eps": adam.epsilon,
        "adam_eps_root": 0.0, "adam_weight_decay": adam.weight_decay, "adamw_mask": [_path(rule) for rule in still],
        "gradient_clipping_threshold": adam.max_grad_norm or 0.0, "z_loss_multiplier": run.config.z_loss_weight,
        "learning_rate": adam.learning_rate, "learning_rate_final_fraction": adam.min_lr_ratio,
        "steps": trainer.num_train_steps, **_schedule(adam, trainer.num_train_steps),
    }  # fmt: skip


def _path(rule: ArrayRule) -> str:
    """Return an expression for the path of an array, for ``adamw_mask``."""
    path = re.escape(rule.theirs.replace(".", "/"))
    return f"^{path.replace(re.escape('{}'), '(_[0-9]+)?')}$"


def _schedule(adam: AdamConfig, total: int) -> dict[str, ForeignValue]:
    """Return MaxText's schedule; `check_rates` compares its rates.

    Its decay of N updates reaches its end in the last one, ours in the one after it: MaxText's is one longer.
    """
    if adam.lr_schedule not in ("constant", "linear", "cosine") or adam.cycles or adam.cycle_length:
        raise ConversionError(
            f"optimizer.lr_schedule: {adam.lr_schedule}, cycles {adam.cycles or adam.cycle_length} here, and "
            f"{_MAXTEXT} has one linear or cosine decay"
        )
    last = fraction_or_steps(adam.cooldown, total) if adam.cooldown else 0
    cycle = total - last
    warmup = min(fraction_or_steps(adam.warmup, cycle), cycle)
    decay = 0 if adam.lr_schedule == "constant" else cycle - warmup
    if decay and adam.decay is not None:
        decay = min(fraction_or_steps(adam.decay, cycle), decay)
    steps = total if last or not decay else total + 1
    updates = decay + 1 if decay else 0
    plain = adam.lr_schedule == "cosine" and warmup + decay == cycle
    return {
        "learning_rate_schedule_steps": steps, "warmup_steps_fraction": _fraction(warmup, steps),
        "lr_schedule_type": "cosine" if plain else "wsd", "wsd_decay_steps_fraction": _fraction(updates, steps),
        "wsd_decay_style": "cosine" if adam.lr_schedule == "cosine" else "linear",
    }  # fmt: skip


def _fraction(count: int, steps: int) -> float:
    """Return a fraction of ``steps`` that MaxText rounds down to ``count``."""
    return min((count + 0.5) / steps, 1.0) if count else 0.0
