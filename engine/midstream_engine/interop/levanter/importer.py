"""From a Levanter checkpoint to one of ours: weights, Adam's moments, counts, schedule and key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from midstream_engine.checkpoint.format.boxes import whole
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LlamaConfig, LmConfig
from midstream_engine.data.imported.levanter_cache import import_levanter
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun, constant, state_arrays
from midstream_engine.interop.imported_array import Incoming, Piece
from midstream_engine.interop.levanter.arrays import Stored, find, open_arrays, read_metadata
from midstream_engine.interop.levanter.configuration import read_config, translate
from midstream_engine.interop.levanter.data import Data, names_data, read_data
from midstream_engine.interop.tokenizer_files import beside_data, first_at

_OPTIMIZER = "opt_state/"
_COUNTS = ("count", "hyperparams_states/learning_rate/count")
_RATE = "hyperparams/learning_rate"


@dataclass(frozen=True)
class Rule:
    """Where one of our arrays lies, and how a layer of theirs (all of it, where it is not stacked) becomes ours."""

    theirs: str
    turn: Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


def open_levanter(
    path: str, config_path: str | None = None, caches: Sequence[str] = (), *, without_data: bool = False
) -> ForeignRun:
    """The checkpoint at ``path`` (one, or a run's newest) as arrays of ours to be, and the data that it reads, which
    lies in ``caches`` where any are given. ConversionError where anything is left over, missing or misshapen, or the
    configuration or the data is not here."""
    directory = find(path)
    read_metadata(directory)
    kind, found = open_arrays(directory)
    notes: list[str] = []
    table = "model/embeddings/token_embeddings/weight"
    if table not in found:
        raise ConversionError(f"{directory}: has no {table}")
    rows = found[table].shape[0]
    told, config_path = read_config(directory, config_path)
    ordered = not without_data and (bool(caches) or names_data(told))
    mapping = translate(told, rows, notes, ordered=ordered)
    config = from_mapping(mapping).config
    near = [os.path.dirname(os.path.abspath(config_path)), directory, os.path.dirname(directory), os.getcwd()]
    named = str((told.get("data") or {}).get("tokenizer") or "")
    tokenizer = first_at(near, named) if named else {}
    if named and not tokenizer and ordered:
        notes.append(f"data.tokenizer: {named} is only a name: the tokenizer's files do not come along")
    data = None
    if ordered:
        length = told.get("train_seq_len") or config.model.seq_len
        if length != config.model.seq_len:
            raise ConversionError(f"train_seq_len: {length} tokens of {config.model.seq_len} are not carried over")
        data = read_data(told, near, caches, config.trainer, config.trainer.seed)
        ends = "" if data.eos is None else f":{data.eos}"
        mapping["data"] |= {
            "tokenizer": f"ids:{rows}{ends}", "shuffle": False, "block_cross_document_attention": data.eos is not None,
        }  # fmt: skip
        config = from_mapping(mapping).config
    wanted = state_arrays(config, rows)
    steps = _counts(directory, found)
    used = {"step", "training_key", *(name for name in found if _is_count(name))}
    arrays, missing, wrong = [], [], []
    inner = _adam(directory, found)
    places = {"model/": "model/", "optimizer/adam/mu/": f"{inner}mu/", "optimizer/adam/nu/": f"{inner}nu/"}
    for name, array in wanted.items():
        prefix = next((one for one in places if name.startswith(one)), None)
        if prefix is None:
            continue
        rule = _rule(config.model, name.removeprefix(prefix))
        stored = found.get(places[prefix] + rule.theirs)
        if stored is None:
            missing.append(places[prefix] + rule.theirs)
            continue
        used.add(stored.name)
        stacked = array.axes[0] == "layers" if array.axes else False
        shape = array.shape[1:] if stacked else array.shape
        theirs = stored.shape[1:] if stacked else stored.shape
        try:
            fits = rule.turn(np.broadcast_to(np.int8(0), theirs), shape).shape == shape
        except ValueError:
            fits = False
        if not fits or (stacked and stored.shape[0] != array.shape[0]):
            wrong.append(f"{stored.name} {stored.shape}")
            continue
        planes = array.shape[0] if stacked else 1
        pieces = partial(_pieces, rule, stacked, array.shape, numpy_dtype(array.dtype))
        read = partial(_read, stored, stacked)
        arrays.append(Incoming(array.name, array.axes, array.shape, array.dtype, pieces, read, planes))
    left = sorted(found.keys() - used)
    problems = [
        f"{what}: {', '.join(names[:10])}{' ...' if names[10:] else ''}"
        for what, names in (("left over", left), ("missing", sorted(missing)), ("misshapen", sorted(wrong)))
        if names
    ]
    if problems:
        raise ConversionError(f"{directory}: the arrays do not fit the configuration; {'; '.join(problems)}")
    key = found["training_key"].read().astype(np.uint32)
    arrays += [
        constant(wanted["optimizer/adam/count"], steps),
        constant(wanted["optimizer/schedule/count"], steps),
        constant(wanted["key"], key),
    ]
    others = sorted(wanted.keys() - {array.name for array in arrays})
    if others:
        raise ConversionError(f"{directory}: these arrays of the state have no source: {', '.join(others)}")
    notes.append("the training key is carried over, but dropout draws from it in another way here")
    trainer = config.trainer
    state = {
        "step": steps, "optimizer_count": steps, "schedule_count": steps,
        "next_sample": trainer.batch_schedule().first_sample(steps),
        "batch_schedule": trainer.batch_schedule().to_json(),
        "seed": trainer.seed, "seq_len": config.model.seq_len, "shuffle": config.data.shuffle, "data_digest": "",
        "tokenizer": config.data.tokenizer,
    }  # fmt: skip
    provenance = {
        "time": time.time(), "converted_from": "levanter", "source": directory, "format": kind, "vocab_size": rows,
    }  # fmt: skip
    stamp: list[Any] = [[name, list(stored.shape), str(stored.dtype)] for name, stored in found.items()]
    stamp.append(os.stat(os.path.join(directory, "metadata.json")).st_mtime_ns)
    bring = None if data is None else partial(_link_data, data, config.model.seq_len, config.data.tokenizer, tokenizer)
    return ForeignRun(
        "levanter", steps, mapping, arrays, state, provenance, notes, stamp, list, _sound, bring, tokenizer
    )


def _link_data(
    data: Data, seq_len: int, tokenizer: str, files: dict[str, str], place: str, given: Sequence[str]
) -> str:
    """Link the token caches, which were found when the checkpoint was opened, under ``place``."""
    del given
    beside = beside_data(files)
    return import_levanter(place, data.caches, data.order, seq_len=seq_len, tokenizer=tokenizer, beside=beside)


def _sound() -> None:
    """TensorStore has checked what it read."""


def _is_count(name: str) -> bool:
    inner = name.removeprefix(_OPTIMIZER)
    return name.startswith(_OPTIMIZER) and (inner in (*_COUNTS, _RATE) or inner.endswith("/count"))


def _counts(directory: str, found: dict[str, Stored]) -> int:
    """Updates done, as everything that counts agrees."""
    names = [name for name in found if name == "step" or (_is_count(name) and name.endswith("count"))]
    counts = {name: int(found[name].read()) for name in names}
    if "step" not in counts or "training_key" not in found:
        raise ConversionError(f"{directory}: has no step or no training_key")
    if len(set(counts.values())) != 1:
        raise ConversionError(f"{directory}: its counts disagree: {counts}")
    return counts["step"]


def _adam(directory: str, found: dict[str, Stored]) -> str:
    """Where Adam's moments lie: the first or second part of the chain, without clipping or with it."""
    places = sorted({name.split("/mu/")[0] + "/" for name in found if name.startswith(_OPTIMIZER) and "/mu/" in name})
    if len(places) != 1:
        raise ConversionError(f"{directory}: Adam's moments are not where they were expected: {places}")
    return places[0]


def _read(stored: Stored, stacked: bool, plane: int) -> np.ndarray:
    """A layer, where it is stacked."""
    return stored.read(plane if stacked else None)


def _pieces(
    rule: Rule, stacked: bool, shape: tuple[int, ...], dtype: np.dtype, plane: int, read: np.ndarray
) -> list[Piece]:
    inner = shape[1:] if stacked else shape
    ours = rule.turn(read, inner).astype(dtype, copy=False)
    return [(((plane, plane + 1), *whole(inner)), ours[None]) if stacked else (whole(shape), ours)]


def _same(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    del shape
    return array


def _turned(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[out..., in] -> [in, out...]."""
    return np.moveaxis(array, -1, 0).reshape(shape)


def _output(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[out, in...] -> [in..., out]."""
    return np.moveaxis(array, 0, -1).reshape(shape)


def _rule(model: LmConfig, ours: str) -> Rule:
    llama = isinstance(model, LlamaConfig)
    layers = "transformer/layers/stacked/" if llama else "transformer/blocks/stacked/"
    names = {
        "token_embeddings/weight": "embeddings/token_embeddings/weight",
        "position_embeddings/weight": "embeddings/position_embeddings/weight",
        "ln_f/weight": "transformer/ln_f/weight", "ln_f/bias": "transformer/ln_f/bias",
        "norm/weight": "transformer/norm/weight", "lm_head/weight": "lm_head/weight",
    }  # fmt: skip
    theirs = names.get(ours)
    if theirs is None:
        theirs = ours.replace("blocks/stacked/", layers)
        if not llama:
            for mine, yours in (("attn/qkv", "attn/c_attn"), ("attn/proj", "attn/c_proj"), ("mlp/up", "mlp/c_fc"),
                                ("mlp/down", "mlp/c_proj")):  # fmt: skip
                theirs = theirs.replace(mine, yours)
    if not llama or not ours.endswith("/weight") or "norm" in ours or "embeddings" in ours:
        return Rule(theirs, (lambda array, shape: array.reshape(shape)) if ours.endswith("/bias") else _same)
    return Rule(theirs, _output if "o_proj" in ours or "down_proj" in ours or "lm_head" in ours else _turned)
