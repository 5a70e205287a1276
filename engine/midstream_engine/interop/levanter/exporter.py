"""Export of a run to Levanter: weights, average, moments, counts and key.

The configuration is Levanter's, and is read again here before anything is written.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import yaml

from midstream_core.learning_rate import LEVANTER_0_2, LEVANTER_1_2, ScheduleError, rate_at, rate_parts, rate_settings
from midstream_engine.checkpoint.boxes import Box, full_box
from midstream_engine.checkpoint.chunk_grid import STACKED
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import Gpt2Config, LlamaConfig
from midstream_engine.interop.array_writer import write_array
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG, EXP_AVG_SQ, MASTER, ExportedRun
from midstream_engine.interop.exported_settings import adam_of, check_rates
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface.names import unpadded
from midstream_engine.interop.levanter.arrays import METADATA
from midstream_engine.interop.levanter.configuration import translate
from midstream_engine.interop.levanter.layout import ArrayRule, rule_of
from midstream_engine.interop.levanter.optimizer_state import ROOT
from midstream_engine.interop.tokenizer_files import copy_files
from midstream_engine.optim.schedule import learning_rate

CONFIG = "config.yaml"
_AVERAGE = "average/model/"
_NAMES = {LEVANTER_0_2: "Levanter 0.2.20", LEVANTER_1_2: "Levanter 1.2"}
_SEQUENCE = {LEVANTER_0_2: "max_seq_len", LEVANTER_1_2: "seq_len"}
_REFUSED = {
    "optimizer.clip_update_norm": None,
    "optimizer.skip_bad_steps": False,
    "optimizer.weight_decay_modules": None,
}
_MODEL = ("hidden_dim", "num_layers", "num_heads", "activation_function", "layer_norm_epsilon", "initializer_range")
_FAMILIES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    Gpt2Config: ("gpt2", ("mlp_scale", "embed_pdrop", "resid_pdrop", "attn_pdrop", "scale_attn_by_inverse_layer_idx",
                          "use_bias")),
    LlamaConfig: ("llama", ("num_kv_heads", "intermediate_dim", "tie_word_embeddings", "use_bias",
                            "use_layer_norm_weight")),
}  # fmt: skip
_OPTIMIZER = (
    "learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm", "lr_schedule", "min_lr_ratio",
    "warmup", "decay", "rewarmup", "cycles", "cycle_length", "default_weight_decay_mask", "nesterov",
    "update_rms_clipping", "adamc_weight_decay", "cooldown",
)  # fmt: skip
# Fields of the engine's own, which change no number, and those that are compared in another way.
_OWN = {"schedule_rules", "mu_dtype", "nu_dtype", "pad_vocab_to_multiple", "gradient_checkpointing", "attn_backend",
        "use_flash_attention", "flash_attention_block_size", "flash_attention_fused_backward",
        "cross_entropy_block_size", "upcast_attn"}  # fmt: skip


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write ``step-N`` and ``config.yaml`` for marin-levanter 0.2; see `Exporter`."""
    del options
    return write(run, directory, LEVANTER_0_2)


def write(run: ExportedRun, directory: str, rules: str) -> Exported:
    """Write the run for the release whose ``rules`` of the schedule these are.

    Raises:
        ConversionError: That release cannot have the run's state or settings.
    """
    program = _NAMES[rules]
    adam = adam_of(run, program, _REFUSED)
    config = _config(run, rules)
    _check_read_again(run, config, rules)
    check_rates(run, program, _rates(run, config["optimizer"], rules))
    chain = f"{ROOT}inner_state/{1 if adam.max_grad_norm else 0}/"
    places = {MASTER: "model/", EXP_AVG: f"{chain}mu/", EXP_AVG_SQ: f"{chain}nu/", _AVERAGE: "model_averaging/model/"}
    counts = {f"{ROOT}count": run.schedule_count, f"{ROOT}hyperparams_states/learning_rate/count": run.schedule_count,
              f"{chain}count": run.optimizer_count, "step": run.step}  # fmt: skip
    _check_counts(run, program)
    arrays = list(_arrays(run, places))
    done = max(run.step - 1, 0)  # its trainer names a checkpoint after the update before
    name = f"step-{done}"
    folder = os.path.join(directory, name)
    os.makedirs(folder)
    zarr2 = rules == LEVANTER_1_2
    for target, dtype, shape, planes in arrays:
        write_array(folder, target, dtype, shape, planes, zarr2=zarr2)
    rate = learning_rate(run.config.optimizer, run.config.trainer.num_train_steps)(max(run.schedule_count - 1, 0))
    scalars = {target: np.int32(count) for target, count in counts.items()}
    scalars |= {f"{ROOT}hyperparams/learning_rate": np.asarray(rate, np.float32), "training_key": _key(run)}
    for target, value in scalars.items():
        values = np.asarray(value)
        write_array(folder, target, values.dtype.name, values.shape, iter([values]), zarr2=zarr2)
    copy_files(run.tokenizer, directory)
    with open(os.path.join(directory, CONFIG), "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file, sort_keys=False)
    stamp = datetime.datetime.now().isoformat()  # Levanter compares local times
    with open(os.path.join(folder, METADATA), "w", encoding="utf-8") as file:  # last: what has it is complete
        json.dump({"step": done, "timestamp": stamp, "is_temporary": False}, file)
    return Exported([name, CONFIG], _notes(run, name, rules))


def _notes(run: ExportedRun, name: str, rules: str) -> list[str]:
    notes = [
        f"the data is not in it: name it in data; Levanter's own order goes on at batch {run.step}",
        f"resume with --trainer.load_checkpoint_path DST/{name} and the configuration {CONFIG}",
    ]
    rows = {parameter.shape[0] for name, parameter in run.parameters.items() if name == "token_embeddings/weight"}
    if rows != {run.vocab_size}:
        notes.append(f"the vocabulary has {run.vocab_size} rows there; those that pad it to {rows.pop()} are left out")
    if rules == LEVANTER_1_2 and run.config.trainer.precision().parameters != "float32":
        notes.append("Levanter 1.2 makes parameters float32 in its first update")
    return notes


def _config(run: ExportedRun, rules: str) -> dict[str, ForeignValue]:
    """Return Levanter's configuration."""
    model, optimizer, trainer = run.config.model, run.config.optimizer, run.config.trainer
    if type(model) not in _FAMILIES:
        raise ConversionError(f"model.type: {type(model).__name__} here, and Levanter gets a GPT-2 or a Llama")
    kind, fields = _FAMILIES[type(model)]
    described: dict[str, ForeignValue] = {"type": kind, _SEQUENCE[rules]: model.seq_len}
    described |= {name: getattr(model, name) for name in (*_MODEL, *fields)}
    if isinstance(model, LlamaConfig):
        encoded = run.config.resolved()["model"]
        described["rope"] = encoded["rope"]
        if model.head_dim is not None:
            described["head_dim"] = model.head_dim
    settings: dict[str, ForeignValue] = {"type": "adam"}
    settings |= {name: value for name in _OPTIMIZER if (value := getattr(optimizer, name)) is not None}
    settings["max_grad_norm"] = getattr(optimizer, "max_grad_norm", None) or None
    sizes: object = run.config.resolved()["trainer"]["train_batch_size"]
    return {
        "data": {"tokenizer": "passthrough", "vocab_size": run.vocab_size,
                 "block_cross_document_attention": run.config.data.block_cross_document_attention},
        "model": described, "optimizer": settings,
        "trainer": {"seed": trainer.seed, "train_batch_size": sizes, "num_train_steps": trainer.num_train_steps,
                    "mp": str(trainer.precision())},
        **({"z_loss_weight": run.config.z_loss_weight} if run.config.z_loss_weight else {}),
    }  # fmt: skip


def _check_read_again(run: ExportedRun, config: dict[str, ForeignValue], rules: str) -> None:
    """Compare the run's settings with those that an import reads in ``config``.

    Raises:
        ConversionError: One differs.
    """
    try:
        again = from_mapping(translate(config, run.vocab_size, [], ordered=False, rules=rules)).config
    except ConfigError as error:
        raise ConversionError(f"{_NAMES[rules]}: {error}") from None
    for section in ("model", "optimizer"):
        here, there = (dataclasses.asdict(getattr(config, section)) for config in (run.config, again))
        for name in sorted((here.keys() | there.keys()) - _OWN):
            if (here.get(name) or None) != (there.get(name) or None):
                raise ConversionError(
                    f"{section}.{name}: {here.get(name)!r} here, and {_NAMES[rules]} has {there.get(name)!r}"
                )


def _rates(run: ExportedRun, settings: ForeignConfig, rules: str) -> Callable[[int], float]:
    """Return Levanter's learning rate by the number of updates before."""
    try:
        parts = rate_parts(rate_settings({**settings, "schedule_rules": rules}), run.config.trainer.num_train_steps)
    except ScheduleError as error:
        raise ConversionError(f"optimizer.{error}") from None
    return lambda count: rate_at(parts, count)


def _check_counts(run: ExportedRun, program: str) -> None:
    """Raise ConversionError where the run has counts that are one number there."""
    if run.schedule_count != run.step or run.optimizer_count != run.step:
        raise ConversionError(
            f"{run.checkpoint}: {run.step} steps, {run.schedule_count} updates of the schedule and "
            f"{run.optimizer_count} of the optimizer, and {program} has one count"
        )


def _key(run: ExportedRun) -> np.ndarray:
    array = run.arrays["key"]
    return array.part(full_box(array.shape)).astype(np.uint32)


def _arrays(
    run: ExportedRun, places: Mapping[str, str]
) -> Iterator[tuple[str, str, tuple[int, ...], Iterator[np.ndarray]]]:
    """Yield name, type, shape and planes of each array there.

    Raises:
        ConversionError: The state has an array that Levanter has not.
    """
    own = {"key", "optimizer/adam/count", "optimizer/schedule/count"}
    for name, array in run.arrays.items():
        prefix = next((prefix for prefix in places if name.startswith(prefix)), None)
        if prefix is None:
            if name not in own:
                raise ConversionError(f"{run.checkpoint}: {name} has no counterpart in Levanter")
            continue
        stacked = array.axes[:1] != () and array.axes[0] in STACKED
        axes, shape = (array.axes[1:], array.shape[1:]) if stacked else (array.axes, array.shape)
        box = full_box(unpadded(axes, shape, run.vocab_size))
        rule = rule_of(run.config.model, name.removeprefix(prefix))
        sample = rule.back(np.broadcast_to(np.int8(0), tuple(end for _, end in box)), run.config.model).shape
        layers = array.shape[0] if stacked else None
        complete = (layers, *sample) if layers is not None else sample

        def planes(
            array: HostArray = array, box: Box = box, layers: int | None = layers, rule: ArrayRule = rule
        ) -> Iterator[np.ndarray]:
            for layer in range(layers or 1):
                plane = array.part(box) if layers is None else array.part(((layer, layer + 1), *box))[0]
                yield rule.back(plane, run.config.model)

        yield places[prefix] + rule.theirs, array.dtype, complete, planes()
