"""Import of a Hugging Face model as a run: the model, a fresh optimizer, and data.

The data is that of the configuration.

A model directory has no data or training configuration: those are given by flags of the engine.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import yaml

from midstream_core.json_types import JsonValue
from midstream_engine.checkpoint.boxes import Box, full_box
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.config.load import load_config
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.prepared_data import open_training
from midstream_engine.data.tokenize.tokenizer import Tokenizer, load_tokenizer
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface.configuration import with_dropout
from midstream_engine.interop.huggingface.importer import converted, described, not_imported, started_with
from midstream_engine.interop.huggingface.names import PREFIX
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.tensor_files import read_tensors
from midstream_engine.interop.tokenizer_files import files_at


def _sound() -> None:
    """Do nothing: the format safetensors has no checksums."""


@dataclasses.dataclass(frozen=True)
class Start:
    """State of a training with which a run begins.

    By default it is that before the first update.

    ``settings``: the sections ``optimizer`` and ``trainer`` of the configuration. ``moments``: tensors by Hugging
    Face's names, by prefix. ``files`` are those of the source that it was read from, if they are there.
    """

    step: int = 0
    optimizer_count: int = 0
    schedule_count: int = 0
    settings: ForeignConfig = dataclasses.field(default_factory=dict[str, ForeignValue])
    moments: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(
        default_factory=dict[str, Mapping[str, np.ndarray]]
    )
    notes: Sequence[str] = ("a model has no optimizer: moments, counts and schedule start at zero",)
    verify: Callable[[], None] = _sound
    files: Sequence[str] = ()


FRESH = Start()


def open_model(
    source: str, overrides: Sequence[str], parameters: str | None = None, start: Start = FRESH
) -> ForeignRun:
    """Open a model directory as a run, with the state ``start``.

    Args:
        source: The directory.
        overrides: Flags of the engine, at least the data (``--data.train_urls``).
        parameters: Type to which parameters are rounded; None: that of the flags, which must keep every number.
        start: State of its training.

    Raises:
        ConversionError: There is no data, or the model does not match it or the flags.
    """
    model_config, model, vocab_size = described(source)
    if start.step:
        model = with_dropout(model, model_config)
    own = os.path.join(source, "tokenizer.json")
    mapping = started_with(model, source, source, own if os.path.isfile(own) else None)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"data": mapping["data"], "model": mapping["model"], **start.settings}, file)
        file.flush()
        loaded = load_config(["--config_path", file.name, *overrides])
    config = loaded.config
    if parameters is not None:
        mp = str(config.trainer.precision().with_parameters(parameters))
        config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, mp=mp))
    if config.model != model:
        raise ConversionError(f"{source}: the flags describe another model than its config.json")
    tokenizer = _tokenizer(source, config, model.padded_vocab(vocab_size), start)
    counts = {"optimizer/adam/count": start.optimizer_count, "optimizer/schedule/count": start.schedule_count}
    tensors = {PREFIX: read_tensors(source), **start.moments}
    arrays = [
        _incoming(array)
        for array in converted(config, vocab_size, tensors, rounds=parameters is not None, counts=counts)
    ]
    mapping = config.resolved()
    for name in ("id", "root"):
        mapping["trainer"][name] = None
    notes = [
        *loaded.notes,
        *not_imported(source, {} if model != described(source)[1] else model_config, start.files),
        *start.notes,
    ]
    state = {
        "step": start.step, "optimizer_count": start.optimizer_count, "schedule_count": start.schedule_count,
        "next_sample": config.trainer.batch_schedule().first_sample(start.step),
        "batch_schedule": config.trainer.batch_schedule().to_json(), "seed": config.trainer.seed,
        "seq_len": model.seq_len, "shuffle": config.data.shuffle, "data_digest": "",
        "tokenizer": tokenizer.id if tokenizer else "",
    }  # fmt: skip
    provenance = {
        "time": time.time(), "converted_from": "huggingface", "source": source, "huggingface": model_config,
        "vocab_size": vocab_size,
    }  # fmt: skip
    weights = sorted(name for name in os.listdir(source) if name.endswith((".safetensors", ".json", ".pt")))
    stamp: list[JsonValue] = [[name, os.stat(os.path.join(source, name)).st_mtime_ns] for name in weights]
    stamp.append(config.trainer.mp)  # decides the type of the parameters
    link = partial(_tokenized, config, tokenizer) if tokenizer else None
    name = config.data.tokenizer or "bytes"
    return ForeignRun("huggingface", start.step, mapping, arrays, state, provenance, notes, stamp, list, start.verify,
                   link, {} if name == "bytes" else files_at(name))  # fmt: skip


def _tokenizer(source: str, config: TrainLmConfig, rows: int, start: Start) -> Tokenizer | None:
    """Return the tokenizer of the run's data; None: it has no data yet.

    Raises:
        ConversionError: A model has no data, or the embedding has too few rows.
    """
    if not (config.data.train_urls or config.data.configs or config.data.id):
        if start.step:
            return None
        raise ConversionError(f"{source}: a model has no data (hint: -- --data.train_urls FILES)")
    tokenizer = load_tokenizer(config.data.given_tokenizer, config.data.eos_token)
    if tokenizer.vocab_size > rows:
        raise ConversionError(
            f"data.tokenizer: {config.data.tokenizer} has {tokenizer.vocab_size} tokens, the embedding {rows} rows"
        )
    return tokenizer


def _incoming(array: HostArray) -> ImportedArray:
    """Return an array that is imported layer by layer, if it has layers."""
    planes = array.shape[0] if array.axes[:1] == ("layers",) else 1

    def box_of(plane: int) -> Box:
        return full_box(array.shape) if planes == 1 else ((plane, plane + 1), *full_box(array.shape[1:]))

    def pieces(plane: int, read: np.ndarray) -> list[Piece]:
        return [(box_of(plane), read)]

    return ImportedArray(
        array.name, array.axes, array.shape, array.dtype, pieces, lambda plane: array.part(box_of(plane)), planes
    )


def _tokenized(config: TrainLmConfig, tokenizer: Tokenizer, place: str, given: Sequence[str]) -> str:
    """Tokenize the configuration's text under ``place``; return the tokens' directory."""
    if given:
        raise ConversionError("--data names data of another trainer (hint: a model's is in data.train_urls)")
    return open_training(os.path.dirname(place), config.data, tokenizer, seq_len=config.positions).directory
