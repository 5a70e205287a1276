"""Import of a Hugging Face model as a run: the model, a fresh optimizer, and data.

The data is that of the configuration.

A model directory has no data or training configuration: those are given by flags of the engine.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Sequence
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
from midstream_engine.interop.huggingface.importer import converted, described, not_imported, started_with
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.tensor_files import read_tensors
from midstream_engine.interop.tokenizer_files import files_at


def open_model(source: str, overrides: Sequence[str], parameters: str | None = None) -> ForeignRun:
    """Open a model directory as a run's state before its first update.

    Args:
        source: The directory.
        overrides: Flags of the engine, at least the data (``--data.train_urls``).
        parameters: Type to which parameters are rounded; None: that of the flags, which must keep every number.

    Raises:
        ConversionError: There is no data, or the model does not match it or the flags.
    """
    model_config, model, vocab_size = described(source)
    own = os.path.join(source, "tokenizer.json")
    mapping = started_with(model, source, source, own if os.path.isfile(own) else None)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({key: mapping[key] for key in ("data", "model")}, file)
        file.flush()
        loaded = load_config(["--config_path", file.name, *overrides])
    config = loaded.config
    if parameters is not None:
        mp = str(config.trainer.precision().with_parameters(parameters))
        config = dataclasses.replace(config, trainer=dataclasses.replace(config.trainer, mp=mp))
    if config.model != model:
        raise ConversionError(f"{source}: the flags describe another model than its config.json")
    if not (config.data.train_urls or config.data.configs or config.data.id):
        raise ConversionError(f"{source}: a model has no data (hint: -- --data.train_urls FILES)")
    tokenizer = load_tokenizer(config.data.given_tokenizer, config.data.eos_token)
    rows = model.padded_vocab(vocab_size)
    if tokenizer.vocab_size > rows:
        raise ConversionError(
            f"data.tokenizer: {config.data.tokenizer} has {tokenizer.vocab_size} tokens, the embedding {rows} rows"
        )
    arrays = [
        _incoming(array) for array in converted(config, vocab_size, read_tensors(source), rounds=parameters is not None)
    ]
    mapping = config.resolved()
    for name in ("id", "root"):
        mapping["trainer"][name] = None
    notes = [
        *loaded.notes,
        *not_imported(source, model_config),
        "a model has no optimizer: moments, counts and schedule start at zero",
    ]
    state = {
        "step": 0, "optimizer_count": 0, "schedule_count": 0, "next_sample": 0,
        "batch_schedule": config.trainer.batch_schedule().to_json(), "seed": config.trainer.seed,
        "seq_len": model.seq_len, "shuffle": config.data.shuffle, "data_digest": "", "tokenizer": tokenizer.id,
    }  # fmt: skip
    provenance = {
        "time": time.time(), "converted_from": "huggingface", "source": source, "huggingface": model_config,
        "vocab_size": vocab_size,
    }  # fmt: skip
    weights = sorted(name for name in os.listdir(source) if name.endswith((".safetensors", ".json")))
    stamp: list[JsonValue] = [[name, os.stat(os.path.join(source, name)).st_mtime_ns] for name in weights]
    stamp.append(config.trainer.mp)  # decides the type of the parameters
    link = partial(_tokenized, config, tokenizer)
    return ForeignRun("huggingface", 0, mapping, arrays, state, provenance, notes, stamp, list, _sound, link,
                   {} if config.data.given_tokenizer == "bytes" else files_at(config.data.given_tokenizer))  # fmt: skip


def _sound() -> None:
    """Do nothing: the format safetensors has no checksums."""


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
