"""Levanter checkpoint import: weights, moments, averages, counts, schedule, key."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from midstream_core.learning_rate import LEVANTER_0_2, LEVANTER_1_2
from midstream_engine.checkpoint.array_names import LogicalArray
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LmConfig
from midstream_engine.data.levanter_cache import import_levanter
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import (
    ForeignRun,
    check_all_made,
    check_fit,
    constant,
    run_state,
    state_arrays,
)
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.levanter.arrays import ZARR2, StoredArray, find, open_arrays, read_metadata
from midstream_engine.interop.levanter.configuration import config_beside, read_config, translate
from midstream_engine.interop.levanter.data import Data, names_data, read_data
from midstream_engine.interop.levanter.layout import ArrayRule, rule_of
from midstream_engine.interop.levanter.optimizer_state import (
    CLIP,
    MOMENTS,
    clip_arrays,
    clip_place,
    is_count,
    moments_place,
    moments_sources,
    never_skips,
    read_counts,
    skip_step_arrays,
    skip_step_names,
)
from midstream_engine.interop.levanter.precision import apply_stored_types
from midstream_engine.interop.tokenizer_files import beside_data, first_at

_AVERAGE = "model_averaging/model/"


def open_levanter(
    path: str, config_path: str | None = None, caches: Sequence[str] = (), *, without_data: bool = False
) -> ForeignRun:
    """Open the checkpoint at ``path`` (one, or a run's newest) and its data.

    The data is in ``caches`` if any are given.

    Raises:
        ConversionError: An array is unused, missing or has another shape, or configuration or data are missing.
    """
    of_run = config_path or config_beside(path)
    directory = find(path, of_run)
    metadata = read_metadata(directory)
    kind, stored = open_arrays(directory)
    notes: list[str] = []
    table = "model/embeddings/token_embeddings/weight"
    if table not in stored:
        raise ConversionError(f"{directory}: has no {table}")
    rows = stored[table].shape[0]
    elsewhere = os.path.dirname(directory) != os.path.abspath(path) and directory != path
    levanter, config_path = read_config(directory, of_run if elsewhere else config_path)
    ordered = not without_data and (bool(caches) or names_data(levanter))
    rules = LEVANTER_1_2 if kind == ZARR2 else LEVANTER_0_2
    mapping = translate(levanter, rows, notes, ordered=ordered, rules=rules)
    optimizer = str(mapping["optimizer"]["type"])
    place = moments_place(directory, stored)
    apply_stored_types(mapping, stored, place, notes)
    config = from_mapping(mapping).config
    length = levanter.get("train_seq_len") or config.model.seq_len
    if length != config.model.seq_len:
        raise ConversionError(f"train_seq_len: {length} tokens of {config.model.seq_len} are not carried over")
    near = [os.path.dirname(os.path.abspath(config_path)), directory, os.path.dirname(directory), os.getcwd()]
    named = str((levanter.get("data") or {}).get("tokenizer") or "")
    tokenizer = first_at(near, named) if named else {}
    if named and not tokenizer and ordered:
        notes.append(f"data.tokenizer: {named} is only a name: the tokenizer's files are not imported")
    data = None
    if ordered:
        data = read_data(levanter, near, caches, config.trainer, config.trainer.seed)
        ends = "" if data.eos is None else f":{data.eos}"
        mapping["data"] |= {
            "tokenizer": f"ids:{rows}{ends}", "shuffle": False, "block_cross_document_attention": data.eos is not None,
        }  # fmt: skip
        config = from_mapping(mapping).config
    logical = state_arrays(config, rows)
    clip = clip_place(stored) if f"{CLIP}norms" in logical else None
    counts = read_counts(directory, stored, clip)
    steps = counts.steps
    if metadata["step"] not in (steps - 1, steps):  # its trainer writes step-N after update N, counted from 0
        raise ConversionError(
            f"{directory}: metadata.json has step {metadata['step']!r}, and the arrays are of {steps} updates: another "
            "checkpoint was written over it"
        )
    used = {"step", "training_key", *(name for name in stored if is_count(name))}
    if clip is not None:
        used |= {name for name in stored if name.startswith(clip)}
    places = {"model/": "model/", "average/model/": _AVERAGE, **moments_sources(optimizer, place)}
    matched = _match(config.model, logical, stored, places)
    arrays, used = matched.arrays, used | matched.used
    skip_step = skip_step_arrays(directory, stored, logical, counts)
    if skip_step or never_skips(levanter.get("optimizer") or {}):
        used |= skip_step_names(stored)
    check_fit(directory, unused=stored.keys() - used, missing=matched.missing, misshapen=matched.misshapen)
    key = stored["training_key"].read().astype(np.uint32)
    arrays += [
        *skip_step,
        *([] if clip is None else clip_arrays(stored, logical, clip)),
        constant(logical[f"optimizer/{MOMENTS[optimizer][0]}/count"], counts.taken),
        constant(logical["optimizer/schedule/count"], steps),
        constant(logical["key"], key),
    ]
    check_all_made(directory, arrays, logical)
    notes.append("the training key is imported, but dropout uses it differently here")
    state = run_state(config, steps, counts.taken, steps)
    provenance = {
        "time": time.time(), "converted_from": "levanter", "source": directory, "format": kind, "vocab_size": rows,
    }  # fmt: skip
    stamp: list[Any] = [[name, list(array.shape), str(array.dtype)] for name, array in stored.items()]
    stamp.append(os.stat(os.path.join(directory, "metadata.json")).st_mtime_ns)
    link = None
    if data is not None:
        link = partial(_link_data, data, config.model.seq_len, config.data.given_tokenizer, tokenizer)
    return ForeignRun(
        "levanter", steps, mapping, arrays, state, provenance, notes, stamp, _remarks, _sound, link, tokenizer
    )


@dataclass
class _Matched:
    """Our arrays with their sources, and names of Levanter's arrays.

    The names are of arrays that are used, missing, or of another shape.
    """

    arrays: list[ImportedArray] = field(default_factory=list[ImportedArray])
    used: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])
    misshapen: list[str] = field(default_factory=list[str])


def _match(
    model: LmConfig, arrays: Mapping[str, LogicalArray], sources: Mapping[str, StoredArray], places: Mapping[str, str]
) -> _Matched:
    """Find the source of each array of model, average and moments.

    ``places``: prefix of our names -> of theirs.
    """
    matched = _Matched()
    for name, array in arrays.items():
        prefix = next((place for place in places if name.startswith(place)), None)
        if prefix is None:
            continue
        rule = rule_of(model, name.removeprefix(prefix))
        stored = sources.get(places[prefix] + rule.theirs)
        if stored is None:
            matched.missing.append(places[prefix] + rule.theirs)
            continue
        matched.used.add(stored.name)
        stacked = array.axes[0] == "layers" if array.axes else False
        shape = array.shape[1:] if stacked else array.shape
        theirs = stored.shape[1:] if stacked else stored.shape
        try:
            fits = rule.turn(np.broadcast_to(np.int8(0), theirs), shape).shape == shape
        except ValueError:
            fits = False
        if not fits or (stacked and stored.shape[0] != array.shape[0]):
            matched.misshapen.append(f"{stored.name} {stored.shape}")
            continue
        planes = array.shape[0] if stacked else 1
        pieces = partial(_pieces, rule, stacked, array.shape)
        read = partial(_read, stored, stacked)
        matched.arrays.append(ImportedArray(array.name, array.axes, array.shape, array.dtype, pieces, read, planes))
    return matched


def _link_data(
    data: Data, seq_len: int, tokenizer: str, files: dict[str, str], place: str, given: Sequence[str]
) -> str:
    """Link the token caches, which were opened with the checkpoint, under ``place``."""
    del given
    beside = beside_data(files)
    return import_levanter(place, data.caches, data.order, seq_len=seq_len, tokenizer=tokenizer, beside=beside)


def _remarks() -> list[str]:
    return [
        "arrays of Levanter have no checksum: the values that were read are finite, with no second moment below 0, and "
        "a bit that changed before they were read would not show otherwise"
    ]


def _sound() -> None:
    """Do nothing: `StoredArray.read` has checked the values; there are no checksums."""


def _read(stored: StoredArray, stacked: bool, plane: int) -> np.ndarray:
    """Read a layer of a stacked array, or all of an array."""
    return stored.read(plane if stacked else None)


def _pieces(rule: ArrayRule, stacked: bool, shape: tuple[int, ...], plane: int, read: np.ndarray) -> list[Piece]:
    inner = shape[1:] if stacked else shape
    ours = rule.turn(read, inner)
    return [(((plane, plane + 1), *full_box(inner)), ours[None]) if stacked else (full_box(shape), ours)]
