"""Import and export of Hugging Face model directories.

Import makes checkpoints of step 0; export writes the weights of any checkpoint.

Arrays are streamed: memory has the chunks that are being written, or on export one tensor.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import yaml

from midstream_engine.checkpoint.format import zarr
from midstream_engine.checkpoint.format.boxes import Box, extent, full_box, within
from midstream_engine.checkpoint.format.chunk_grid import chunks_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.packed_arrays import unpack
from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document, write
from midstream_engine.checkpoint.saving.commit import commit
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LmConfig
from midstream_engine.config.reading.load import from_mapping
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import checked
from midstream_engine.interop.foreign_run import state_arrays
from midstream_engine.interop.huggingface.configuration import from_huggingface, to_huggingface
from midstream_engine.interop.huggingface.names import CONSTANTS, Rule, rules_of, tied_head
from midstream_engine.interop.tensor_files import Outgoing, read_tensors, write_tensors
from midstream_engine.interop.tokenizer_files import FOLDER, carry, files_at
from midstream_engine.records import (
    IMPORTED,
    MANIFEST,
    PACKED,
    ArrayEntry,
    Manifest,
    RunPaths,
    checkpoint_name,
    parse_checkpoint_name,
    tokenizer_digests,
)
from midstream_engine.shared.precision import Precision

CONFIG = "train.yaml"
_MODEL = "model/"


@dataclasses.dataclass(frozen=True)
class _Converted(HostArray):
    """An array of ours whose contents are made from Hugging Face's tensors on demand."""

    sources: Sequence[np.ndarray] = ()  # one a layer, or one
    rule: Rule | None = None  # None: zeros
    vocab_size: int = 0
    rounds: bool = False  # whether numbers may be rounded to the dtype

    def part(self, box: Box, out: np.ndarray | None = None) -> np.ndarray:
        result = np.empty(extent(box), numpy_dtype(self.dtype)) if out is None else out
        if self.rule is None:
            result[...] = 0
        elif self.rule.stacked:
            for number, layer in enumerate(range(*box[0])):
                self._fill(result[number], self.sources[layer], self.axes[1:], self.shape[1:], box[1:])
        else:
            self._fill(result, self.sources[0], self.axes, self.shape, box)
        return result

    def _fill(
        self, result: np.ndarray, source: np.ndarray, axes: Sequence[str], shape: Sequence[int], box: Box
    ) -> None:
        assert self.rule is not None
        real = _unpadded(axes, shape, self.vocab_size)
        view = self.rule.form.ours(source, real)
        present = tuple((min(start, size), min(stop, size)) for (start, stop), size in zip(box, real, strict=True))
        if present != box:
            result[...] = 0  # the rows that pad the vocabulary
        part = view[tuple(slice(*part) for part in present)]
        result[within(present, box)] = checked(self.name, part, numpy_dtype(self.dtype), rounds=self.rounds)


def import_model(source: str, directory: str, final: str, parameters: str | None = None) -> Manifest:
    """Import the Hugging Face model ``source`` as a checkpoint of step 0.

    The optimizer is fresh.

    Writes ``directory``: ``checkpoints/step-0-a000``, the tokenizer's files, and ``train.yaml``, a configuration that
    starts from it.

    Args:
        source: The model directory.
        directory: Where to write.
        final: The path to which ``directory`` will be renamed.
        parameters: Type to which parameters are rounded; None: float32, which must keep every number.

    Raises:
        ConversionError: A tensor of the source is unused, an array of the model is missing or has another shape, or a
            number is not finite or would be rounded.
    """
    found, model, vocab_size = described(source)
    files = files_at(source)
    carried = None
    if "tokenizer.json" in files:
        carried = carry(files, os.path.join(directory, "data"), f"{final}/data")
    elif files:
        os.makedirs(os.path.join(directory, FOLDER))
        _copy(files, os.path.join(directory, FOLDER))
    mapping = started_with(model, source, final, carried)
    if parameters is not None:
        mapping["trainer"]["mp"] = str(Precision.parse("f32").with_parameters(parameters))
    config = from_mapping(mapping).config
    arrays = list(converted(config, vocab_size, read_tensors(source), rounds=parameters is not None))
    state = {
        "step": 0, "optimizer_count": 0, "schedule_count": 0, "next_sample": 0,
        "batch_schedule": config.trainer.batch_schedule().to_json(), "seed": config.trainer.seed,
        "seq_len": model.seq_len, "shuffle": config.data.shuffle, "data_digest": "", "tokenizer": "",
    }  # fmt: skip
    provenance = {
        "time": time.time(), "config": config.resolved(), "converted_from": "huggingface",
        "huggingface": found, "vocab_size": vocab_size,
    }  # fmt: skip
    paths = _Folder(directory, os.path.basename(final) or "converted")
    target = paths.checkpoint(checkpoint_name(0, 0))
    os.makedirs(paths.checkpoints)
    written = write(target, arrays, train_document(state, provenance, None))
    with open(os.path.join(directory, CONFIG), "w", encoding="utf-8") as file:
        file.write("# Made from a Hugging Face model. Put your text in: data.train_urls.\n")
        yaml.safe_dump(mapping, file, sort_keys=False)
    return commit(paths, target, written, step=0, attempt=0, epoch=1)


def described(source: str) -> tuple[dict[str, Any], LmConfig, int]:
    """Return config.json, our model configuration, and the size of the vocabulary.

    ``source``: a model directory.
    """
    found = _read_json(os.path.join(source, "config.json"))
    model, vocab_size = from_huggingface(found)
    # The embedding has this many rows, whatever the size of the tokenizer.
    return found, dataclasses.replace(model, pad_vocab_to_multiple=model.padded_vocab(vocab_size)), vocab_size


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
    rows: int = vocab_size or provenance.get("vocab_size") or _vocab_size(config, files)
    entries = {
        entry.name.removeprefix(_MODEL): entry
        for entry in report.manifest.array_entries
        if entry.name.startswith(_MODEL)
    }
    described = to_huggingface(config.model, rows, dtype)
    tensors = list(_outgoing(config.model, rows, entries, checkpoint, dtype))
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(described, file, indent=2, sort_keys=True)
    _copy(files, directory)
    return write_tensors(directory, tensors, largest)


def newest_checkpoint(path: str) -> str:
    """Return the checkpoint at ``path``, or the newest complete one there.

    ``path``: a checkpoint, a run, or a folder.

    Raises:
        ConversionError: There is none.
    """
    for folder in (path, os.path.join(path, "checkpoints")):
        if os.path.exists(os.path.join(folder, MANIFEST)):
            return folder
        names = os.listdir(folder) if os.path.isdir(folder) else []
        complete = {
            key: name
            for name in names
            if (key := parse_checkpoint_name(name)) and os.path.exists(os.path.join(folder, name, MANIFEST))
        }
        if complete:
            return os.path.join(folder, complete[max(complete)])
    raise ConversionError(f"{path}: there is no complete checkpoint")


@dataclasses.dataclass(frozen=True)
class _Folder(RunPaths):
    """A run's layout in a directory without a root."""

    @property
    def dir(self) -> str:
        return self.root


# ------------------------------------------------------------------------------------------------------------ reading


def converted(
    config: TrainLmConfig, vocab_size: int, tensors: dict[str, np.ndarray], *, rounds: bool = False
) -> Iterator[HostArray]:
    """Yield every array of the state before the first update.

    ``rounds``: parameters may be rounded to the configuration's type.

    Raises:
        ConversionError: A tensor is missing, unused, or has another shape.
    """
    tensors = _with_prefix(config.model, tensors)
    wanted = state_arrays(config, vocab_size)
    used = _check_tied(config.model, tensors)
    rules = {_MODEL + rule.ours: rule for rule in rules_of(config.model)}
    strange = sorted(name for name in wanted if name.startswith(_MODEL) and name not in rules)
    assert not strange, strange
    arrays = []
    for name, array in wanted.items():
        rule = rules.get(name)
        if rule is None:
            value = array.value
            if isinstance(value, jax.Array):
                piece = (full_box(array.shape), np.asarray(value))
                arrays.append(HostArray(name, array.axes, array.shape, array.dtype, [piece]))
            else:
                arrays.append(_Converted(name, array.axes, array.shape, array.dtype, []))
            continue
        names = [rule.theirs.format(layer) for layer in range(array.shape[0])] if rule.stacked else [rule.theirs]
        axes, shape = (array.axes[1:], array.shape[1:]) if rule.stacked else (array.axes, array.shape)
        expected = rule.form.shape(_unpadded(axes, shape, vocab_size))
        for one in names:
            if one not in tensors:
                raise ConversionError(f"the source lacks {one}, which config.json calls for")
            if tensors[one].shape != expected:
                raise ConversionError(f"{one} has shape {tensors[one].shape}, config.json calls for {expected}")
        used.update(names)
        sources = [tensors[one] for one in names]
        arrays.append(
            _Converted(name, array.axes, array.shape, array.dtype, [], None, sources, rule, vocab_size, rounds)
        )
    unused = sorted(name for name in tensors if name not in used and not CONSTANTS.fullmatch(name))
    if unused:
        raise ConversionError(f"{len(unused)} tensors of the source have no place in the model: {', '.join(unused)}")
    yield from arrays


def _with_prefix(config: LmConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the prefix ``transformer.`` to the names of OpenAI's GPT-2.

    It was saved without its head and without the prefix.
    """
    first = rules_of(config)[0].theirs
    prefix = first.split(".")[0] + "."
    if first in tensors or first.removeprefix(prefix) not in tensors:
        return tensors
    return {name if name.startswith("lm_head") else prefix + name: tensor for name, tensor in tensors.items()}


def _check_tied(config: LmConfig, tensors: dict[str, np.ndarray]) -> set[str]:
    """Return the name of a tied head that is stored twice; check that both are equal."""
    tied = tied_head(config)
    if tied is None or tied[0] not in tensors or tied[1] not in tensors:
        return set()
    head, table = tensors[tied[0]], tensors[tied[1]]
    if head.shape != table.shape or not np.array_equal(head, table):
        raise ConversionError(f"{tied[0]} differs from {tied[1]}, and config.json says that they are tied")
    return {tied[0]}


def started_with(model: LmConfig, source: str, final: str, tokenizer: str | None) -> dict[str, Any]:
    """Return a configuration that begins with the model at ``final``.

    ``tokenizer``: value of ``data.tokenizer``; None: there is none, and training needs one.
    """
    import draccus

    data: dict[str, Any] = {"tokenizer": tokenizer, "train_urls": []}
    if tokenizer is not None:
        eos = _eos_token(source)
        if eos is not None:
            data["eos_token"] = eos
    encoded: dict[str, Any] = draccus.encode(TrainLmConfig(model=model))["model"]
    return {"data": data, "model": encoded, "trainer": {"initialize_model_from": final}}


def _eos_token(source: str) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = os.path.join(source, name)
        token = _read_json(path).get("eos_token") if os.path.exists(path) else None
        if token:
            return token["content"] if isinstance(token, dict) else str(token)
    return None


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise ConversionError(f"{path}: no such file; a Hugging Face model directory has one") from None
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: not a JSON object")
    return value


# ------------------------------------------------------------------------------------------------------------ writing


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
        real = _unpadded(axes, shape, vocab_size)
        if any(have < want for have, want in zip(shape, real, strict=True)):
            raise ConversionError(f"{rule.ours} has shape {shape}, too small for a vocabulary of {vocab_size}")
        box = tuple((0, size) for size in real)
        for layer in range(entry.shape[0] if rule.stacked else 1):

            def make(rule: Rule = rule, array: HostArray = array, box: Box = box, layer: int = layer) -> np.ndarray:
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


def _unpadded(axes: Sequence[str], shape: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    return tuple(vocab_size if axis == "vocab" else size for axis, size in zip(axes, shape, strict=True))


def _tokenizer_files(config: TrainLmConfig, checkpoint: str, state: dict[str, Any]) -> dict[str, str]:
    """Return the files of the run's tokenizer, if they are here.

    They are named by the configuration, imported with the data, or in the run's directory.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(checkpoint)))  # of the run, or of what an import wrote
    name = config.data.tokenizer or ""
    places = [] if name in ("", "bytes") else [name.removeprefix(IMPORTED)]
    for data in (os.path.join(folder, "data"), os.path.join(os.path.dirname(os.path.dirname(folder)), "data")):
        places += [os.path.join(data, digest) for digest in tokenizer_digests(name)]
        places.append(os.path.join(data, state.get("data_digest") or "-", FOLDER))
    places.append(os.path.join(folder, FOLDER))
    return next((files for place in places if (files := files_at(place))), {})


def _copy(files: dict[str, str], directory: str) -> None:
    for name, path in files.items():
        shutil.copyfile(path, os.path.join(directory, name))


def _vocab_size(config: TrainLmConfig, files: dict[str, str]) -> int:
    try:
        name = config.data.given_tokenizer
        return load_tokenizer(
            files.get("tokenizer.json", name) if name.startswith(IMPORTED) else name, config.data.eos_token
        ).vocab_size
    except (ConfigError, DataError) as error:
        raise ConversionError(f"the size of the vocabulary is unknown: {error} (hint: give --vocab-size)") from None
