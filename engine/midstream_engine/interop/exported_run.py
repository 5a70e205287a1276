"""A checkpoint of the engine, open for export.

It has counters, settings, and its arrays on demand. Imported checkpoints are the engine's own. Arrays are views of
mapped files: memory has what is read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
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
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.boxes import Box, extent, full_box
from midstream_engine.checkpoint.chunk_grid import STACKED, chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.packed_arrays import unpack
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.computation.train_state import abstract_state, initializer, policy_of
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignConfig
from midstream_engine.interop.tokenizer_files import FOLDER, files_at
from midstream_engine.models.lm import LmModel
from midstream_engine.optim.decay import decay_mask
from midstream_engine.optim.optimizer import build_optimizer
from midstream_engine.optim.schedule import learning_rate

MASTER, EXP_AVG, EXP_AVG_SQ = "model/", "optimizer/adam/mu/", "optimizer/adam/nu/"  # prefixes of the arrays of Adam
MOMENTS = (EXP_AVG, EXP_AVG_SQ)


@dataclass(frozen=True)
class ExportedParameter:
    """A parameter with the arrays of its optimizer.

    Axes and shape are those of one layer. ``arrays`` has the stored arrays by prefix: ``MASTER``, and of Adam
    ``EXP_AVG`` and ``EXP_AVG_SQ``.
    """

    name: str  # after ``model/``: blocks/stacked/mlp/up/weight
    axes: tuple[str, ...]
    shape: tuple[int, ...]  # rows that pad the vocabulary included
    layers: int | None  # None: not a stack of layers
    decays: bool  # by weight decay
    arrays: Mapping[str, HostArray] = field(repr=False)

    def read(self, kind: str = MASTER, layer: int = 0, box: Box | None = None) -> np.ndarray:
        """Return the contents of ``box``, in the stored type; None: all of the layer.

        ``kind``: a prefix in ``arrays``.
        """
        region = full_box(self.shape) if box is None else box
        if self.layers is None:
            return self.arrays[kind].part(region)
        return self.arrays[kind].part(((layer, layer + 1), *region))[0]


@dataclass(frozen=True)
class ExportedRun:
    """A checkpoint with its configuration. ``state`` is that of train.json."""

    checkpoint: str
    config: TrainLmConfig
    state: ForeignConfig
    vocab_size: int  # rows of the vocabulary without those that pad it
    tokenizer: Mapping[str, str]  # paths of the tokenizer's files by name; empty: they are not here
    arrays: Mapping[str, HostArray] = field(repr=False)

    @property
    def step(self) -> int:
        """Updates of the run, those that were skipped included."""
        return int(self.state["step"])

    @property
    def optimizer_count(self) -> int:
        """Updates in the moments."""
        return int(self.state["optimizer_count"])

    @property
    def schedule_count(self) -> int:
        """Updates in the schedule: the next learning rate is that of this count."""
        return int(self.state["schedule_count"])

    @functools.cached_property
    def parameters(self) -> dict[str, ExportedParameter]:
        """Parameters by name, without ``model/``."""
        model = self._model()
        marks = decay_mask(self.config.optimizer)(model)
        decayed = flatten(jax.tree.map(lambda mark, array: array if mark else None, marks, model))
        names = flatten(model).keys()
        stored = {name.removeprefix(MASTER) for name in self.arrays if name.startswith(MASTER)}
        if stored != names:
            differing = ", ".join(sorted(stored ^ names))
            raise ConversionError(f"{self.checkpoint}: these arrays do not fit its configuration: {differing}")
        return {name: self._parameter(name, name in decayed) for name in sorted(names)}

    def _model(self) -> LmModel:
        """Return the model as shapes."""
        config = self.config
        optimizer = build_optimizer(config.optimizer, learning_rate(config.optimizer, config.trainer.num_train_steps))
        return abstract_state(initializer(config, self.vocab_size, optimizer, policy_of(config))).model

    def _parameter(self, name: str, decays: bool) -> ExportedParameter:
        stored = {kind: self.arrays[kind + name] for kind in (MASTER, *MOMENTS) if kind + name in self.arrays}
        array = stored[MASTER]
        layers = array.shape[0] if array.axes[:1] and array.axes[0] in STACKED else None
        inner = slice(0 if layers is None else 1, None)
        return ExportedParameter(name, array.axes[inner], array.shape[inner], layers, decays, stored)


def open_run(source: str, vocab_size: int | None = None, tokenizer: str | None = None) -> ExportedRun:
    """Open a checkpoint for export, after a check of every object in it.

    Args:
        source: The checkpoint, its run, or its folder.
        vocab_size: Rows of the vocabulary to export; None: those of the tokenizer.
        tokenizer: Folder of the tokenizer's files; None: the run's own, if it is here.

    Raises:
        ConversionError: The checkpoint is not sound, or says too little about its run.
    """
    checkpoint = newest_checkpoint(source)
    report = verify_checkpoint(checkpoint)
    if not report.sound:
        raise ConversionError(f"{checkpoint} is not sound: {report.flaws[0]}")
    train = read_train(checkpoint)
    provenance, state = train.get("provenance") or {}, train["state"]
    if "config" not in provenance:
        raise ConversionError(f"{checkpoint}: train.json names no configuration, so the model's shape is unknown")
    config = from_mapping(provenance["config"]).config
    files = files_at(tokenizer) if tokenizer else _tokenizer_files(config, checkpoint, state)
    rows: int = vocab_size or provenance.get("vocab_size") or _vocab_size(config, files, state)
    return ExportedRun(checkpoint, config, state, rows, files, _stored_arrays(checkpoint, report.manifest))


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


def _stored_arrays(checkpoint: str, manifest: Manifest) -> dict[str, HostArray]:
    packed: dict[str, np.ndarray] = {}
    if any(not entry.grid for entry in manifest.array_entries):
        mapped: Any = np.memmap(os.path.join(checkpoint, PACKED), np.uint8, "r")
        packed = unpack(memoryview(mapped))
    return {entry.name: _stored(checkpoint, entry, packed) for entry in manifest.array_entries}


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


def _tokenizer_files(config: TrainLmConfig, checkpoint: str, state: ForeignConfig) -> dict[str, str]:
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


def _vocab_size(config: TrainLmConfig, files: Mapping[str, str], state: ForeignConfig) -> int:
    try:
        name = config.data.given_tokenizer
        path = files.get("tokenizer.json", name) if name.startswith(IMPORTED) else name
        return load_tokenizer(path, config.data.eos_token, state.get("tokenizer") or "").vocab_size
    except (ConfigError, DataError) as error:
        raise ConversionError(f"the size of the vocabulary is unknown: {error} (hint: give --vocab-size)") from None
