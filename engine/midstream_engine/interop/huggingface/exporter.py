"""Export of a checkpoint's weights as a Hugging Face model directory.

Arrays are streamed: memory has one tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from midstream_core.records import (
    IMPORTED,
    MANIFEST,
    PACKED,
    ArrayEntry,
    Fence,
    Manifest,
    parse_checkpoint_name,
    tokenizer_digests,
)
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import Box, extent, full_box
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.packed_arrays import unpack
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LmConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.huggingface.configuration import to_huggingface
from midstream_engine.interop.huggingface.names import PREFIX, TensorRule, rules_of, unpadded
from midstream_engine.interop.tensor_files import Outgoing, write_tensors
from midstream_engine.interop.tokenizer_files import FOLDER, copy_files, files_at


def export_model(
    source: str, directory: str, *, vocab_size: int | None, tokenizer: str | None, dtype: str, largest: int
) -> list[str]:
    """Export a checkpoint as a model directory; return the weights' file names.

    The directory has config.json, safetensors files and the tokenizer's files.

    Args:
        source: The checkpoint, its run, or its folder.
        directory: Where to write.
        vocab_size: Rows of the vocabulary to export; None: those of the tokenizer.
        tokenizer: Folder of the tokenizer's files; None: the run's own, if it is here.
        dtype: Type of the exported weights.
        largest: Bytes of a file, at most.

    Raises:
        ConversionError: The checkpoint is not sound, or cannot be exported.
    """
    checkpoint = newest_checkpoint(source)
    report = verify_checkpoint(checkpoint)
    if not report.sound:
        raise ConversionError(f"{checkpoint} is not sound: {report.flaws[0]}")
    train = read_train(checkpoint)
    provenance = train.get("provenance") or {}
    if "config" not in provenance:
        raise ConversionError(f"{checkpoint}: train.json names no configuration, so the model's shape is unknown")
    config = from_mapping(provenance["config"]).config
    files = files_at(tokenizer) if tokenizer else _tokenizer_files(config, checkpoint, train["state"])
    rows: int = vocab_size or provenance.get("vocab_size") or _vocab_size(config, files, train["state"])
    entries = {
        entry.name.removeprefix(PREFIX): entry
        for entry in report.manifest.array_entries
        if entry.name.startswith(PREFIX)
    }
    described = to_huggingface(config.model, rows, dtype)
    tensors = list(_outgoing(config.model, rows, entries, checkpoint, dtype))
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(described, file, indent=2, sort_keys=True)
    copy_files(files, directory)
    return write_tensors(directory, tensors, largest)


def newest_checkpoint(path: str) -> str:
    """Return the checkpoint at ``path``, or the newest complete one there.

    ``path``: a checkpoint, a run, or a folder. Of a run's checkpoints only those count that its fence accepts: others
    have steps that were given up in a migration.

    Raises:
        ConversionError: There is none.
        RecordError: The fence, or a manifest, is damaged.
    """
    for folder in (path, os.path.join(path, "checkpoints")):
        if os.path.exists(os.path.join(folder, MANIFEST)):
            return folder
        names = os.listdir(folder) if os.path.isdir(folder) else []
        fence = Fence.read_or_none(os.path.join(os.path.dirname(os.path.abspath(folder)), "fence.json"))
        complete = {
            key: name
            for name in names
            if (key := parse_checkpoint_name(name)) and _counts(os.path.join(folder, name, MANIFEST), fence)
        }
        if complete:
            return os.path.join(folder, complete[max(complete)])
    raise ConversionError(f"{path}: there is no complete checkpoint")


def _counts(path: str, fence: Fence | None) -> bool:
    """Return whether there is a manifest that the run's fence accepts, if it has one."""
    if fence is None:
        return os.path.exists(path)
    manifest = Manifest.read_or_none(path)
    return manifest is not None and fence.accepts(manifest.epoch, manifest.step, manifest.start)


def _outgoing(
    model: LmConfig, vocab_size: int, entries: dict[str, ArrayEntry], checkpoint: str, dtype: str
) -> Iterator[Outgoing]:
    rules = rules_of(model)
    names = {rule.ours for rule in rules}
    if entries.keys() != names:
        differing = sorted(entries.keys() ^ names)
        raise ConversionError(f"{checkpoint}: these arrays do not fit its configuration: {', '.join(differing)}")
    packed: dict[str, np.ndarray] = {}
    if any(not entry.grid for entry in entries.values()):
        mapped: Any = np.memmap(os.path.join(checkpoint, PACKED), np.uint8, "r")
        packed = unpack(memoryview(mapped))
    for rule in sorted(rules, key=lambda rule: rule.stacked):
        entry = entries[rule.ours]
        array = _stored(checkpoint, entry, packed)
        axes, shape = (entry.axes[1:], entry.shape[1:]) if rule.stacked else (entry.axes, entry.shape)
        real = unpadded(axes, shape, vocab_size)
        if any(have < want for have, want in zip(shape, real, strict=True)):
            raise ConversionError(f"{rule.ours} has shape {shape}, too small for a vocabulary of {vocab_size}")
        box = tuple((0, size) for size in real)
        for layer in range(entry.shape[0] if rule.stacked else 1):

            def make(
                rule: TensorRule = rule, array: HostArray = array, box: Box = box, layer: int = layer
            ) -> np.ndarray:
                if not rule.stacked:
                    return rule.form.theirs(array.part(box))
                return rule.form.theirs(array.part(((layer, layer + 1), *box))[0])

            yield Outgoing(rule.theirs.format(layer), dtype, rule.form.shape(real), make)


def _stored(checkpoint: str, entry: ArrayEntry, packed: dict[str, np.ndarray]) -> HostArray:
    """Return an array of a checkpoint as views of its mapped objects."""
    axes, shape = tuple(entry.axes), tuple(entry.shape)
    if not entry.grid:
        return HostArray(entry.name, axes, shape, entry.dtype, [(full_box(shape), packed[entry.name])])
    pieces = []
    for index, box in chunks_of(shape, entry.grid):
        path = os.path.join(checkpoint, zarr.chunk_path(entry.name, index))
        pieces.append((box, np.memmap(path, numpy_dtype(entry.dtype), "r", shape=extent(box))))
    return HostArray(entry.name, axes, shape, entry.dtype, pieces)


def _tokenizer_files(config: TrainLmConfig, checkpoint: str, state: dict[str, ForeignValue]) -> dict[str, str]:
    """Return the files of the run's tokenizer, if they are here.

    The configuration names these files, or they are with the imported data or in the run's directory.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(checkpoint)))  # of the run, or of what an import wrote
    name = config.data.tokenizer or ""
    places = [] if name in ("", "bytes") else [name.removeprefix(IMPORTED)]
    for data in (os.path.join(folder, "data"), os.path.join(os.path.dirname(os.path.dirname(folder)), "data")):
        places += [os.path.join(data, digest) for digest in tokenizer_digests(name)]
        places.append(os.path.join(data, state.get("data_digest") or "-", FOLDER))
    places.append(os.path.join(folder, FOLDER))
    return next((files for place in places if (files := files_at(place))), {})


def _vocab_size(config: TrainLmConfig, files: dict[str, str], state: dict[str, ForeignValue]) -> int:
    try:
        name = config.data.given_tokenizer
        path = files.get("tokenizer.json", name) if name.startswith(IMPORTED) else name
        return load_tokenizer(path, config.data.eos_token, state.get("tokenizer") or "").vocab_size
    except (ConfigError, DataError) as error:
        raise ConversionError(f"the size of the vocabulary is unknown: {error} (hint: give --vocab-size)") from None
