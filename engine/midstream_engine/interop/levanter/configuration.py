"""Levanter's YAML as our configuration: its code's defaults written out, a line for every field that ours lacks."""

from __future__ import annotations

import os
import re
from typing import Any

from midstream_engine.config import yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.data import USED

# What Levanter's code takes where a file says nothing, where that is not what ours takes.
_OPTIMIZER = {"learning_rate": 6e-4, "weight_decay": 0.1}
_TRAINER = {"train_batch_size": 512, "num_train_steps": 400_000, "steps_per_eval": 1000, "seed": 0}
_MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"seq_len": 1024, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embed_pdrop": 0.0},
    "llama": {"seq_len": 2048, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32},
}
_UNKNOWN = re.compile(r"unknown key ([A-Za-z0-9_.]+)")
_PLACES = ("config.yaml", "train_lm.yaml", "../config.yaml", "../../config.yaml")


def read_config(directory: str, given: str | None) -> tuple[dict[str, Any], str]:
    """The run's YAML, and where it lies: ``given``, or with the checkpoint or the run. ConversionError where there is
    none."""
    candidates = [given] if given else [os.path.join(directory, place) for place in _PLACES]
    path = next((one for one in candidates if os.path.isfile(one)), None)
    if path is None:
        raise ConversionError(
            f"{given or directory}: the run's configuration is not there; name its YAML with --config"
        )
    try:
        value = yaml_file.load(path)
    except (ConfigError, OSError) as error:
        raise ConversionError(str(error)) from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: expected keys and values")
    return value, path


def translate(found: dict[str, Any], rows: int, notes: list[str], *, ordered: bool) -> dict[str, Any]:
    """Our mapping. ``rows``: of the embedding; ``ordered``: the data and its order come along, in another way."""
    model = dict(found.get("model") or {})
    kind = model.get("type", "llama")
    if kind not in _MODELS:
        raise ConversionError(f"model.type: {kind!r} is not read; gpt2 and llama are")
    if "max_seq_len" in model:
        model["seq_len"] = model.pop("max_seq_len")
    optimizer = dict(found.get("optimizer") or {})
    if optimizer.get("type", "adam") != "adam":
        raise ConversionError(f"optimizer.type: {optimizer['type']!r} is not read; adam is")
    data = dict(found.get("data") or {})
    tokenizer = str(data.get("tokenizer") or "")
    local = os.path.exists(os.path.expanduser(tokenizer)) and tokenizer != ""
    if tokenizer and not local and not ordered:
        notes.append(
            f"data.tokenizer: {tokenizer} is no path here: ids:{rows} stands for it, and for text tokenized already"
        )
    kept = {key: data[key] for key in ("block_cross_document_attention",) if key in data}
    notes += [
        f"data.{key} has no counterpart" + ("" if ordered else ": the order of the data is not carried over")
        for key in sorted(data)
        if key not in (*kept, "tokenizer", *(USED if ordered else ()))
    ]
    mapping: dict[str, Any] = {
        "data": {"tokenizer": tokenizer if local else f"ids:{rows}", **kept},
        "model": {"type": kind, **_MODELS[kind], **model, "pad_vocab_to_multiple": rows},
        "optimizer": {**_OPTIMIZER, **optimizer},
        "trainer": {**_TRAINER, **dict(found.get("trainer") or {})},
    }
    notes += [f"{key} has no counterpart" for key in sorted(found) if key not in (*mapping, "data_seed")]
    for name in ("id", "load_checkpoint", "load_checkpoint_path", "initialize_from"):
        mapping["trainer"].pop(name, None)
    return _without_unknown(mapping, notes)


def _without_unknown(mapping: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    while True:
        try:
            loaded = from_mapping(mapping)
        except ConfigError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or not _remove(mapping, unknown[1]):
                raise ConversionError(str(error)) from None
            notes.append(f"{unknown[1]} has no counterpart")
            continue
        notes += loaded.notes
        resolved = loaded.config.resolved()
        for name in ("id", "root"):
            resolved["trainer"][name] = None
        return resolved


def _remove(mapping: dict[str, Any], name: str) -> bool:
    *parents, last = name.split(".")
    for parent in parents:
        inner = mapping.get(parent)
        if not isinstance(inner, dict):
            return False
        mapping = inner
    return mapping.pop(last, None) is not None or last not in mapping
