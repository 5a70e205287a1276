"""A run of another trainer, open for import; nothing is written yet."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import draccus
import jax
import numpy as np

from midstream_core.json_types import JsonValue
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.array_names import LogicalArray, flatten
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.computation.train_state import abstract_state, initializer, policy_of
from midstream_engine.config.model import LmConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.models.random_keys import new_key, partitionable
from midstream_engine.optim.optimizer import build_optimizer
from midstream_engine.optim.schedule import learning_rate


@dataclass(frozen=True)
class ImportedRunPaths(RunPaths):
    """A run's layout in a directory without a root."""

    @functools.cached_property
    def dir(self) -> str:
        return self.root


@dataclass(frozen=True)
class ForeignRun:
    """A run of another trainer as arrays and configuration of ours.

    ``mapping`` is the configuration that continues the run. ``state`` is that of train.json, without the digest of the
    data. ``notes`` has a line for each change; ``remarks`` returns more once the arrays are made. ``stamp`` identifies
    the state of the source. ``verify`` raises ConversionError if what was read is damaged. ``data(directory, paths)``
    links the run's data (at ``paths``, if given) under ``directory`` and returns its path; None: the source names none.
    ``tokenizer`` has the files of its tokenizer by name; they are imported with the data, or, if ``mapping`` has the
    tokenizer itself, as data of their own.
    """

    kind: str
    step: int
    mapping: dict[str, Any]
    arrays: list[ImportedArray]
    state: dict[str, Any]
    provenance: dict[str, Any]
    notes: list[str]
    stamp: list[JsonValue]
    remarks: Callable[[], list[str]]
    verify: Callable[[], None]
    data: Callable[[str, Sequence[str]], str] | None
    tokenizer: Mapping[str, str] = field(default_factory=dict)


def state_arrays(config: TrainLmConfig, vocab_size: int) -> dict[str, LogicalArray]:
    """Return every array of the configuration's state as a shape.

    The run's key, which is not zero, is there as its value.
    """
    rate = learning_rate(config.optimizer, config.trainer.num_train_steps)
    optimizer = build_optimizer(config.optimizer, rate)
    state = abstract_state(initializer(config, vocab_size, optimizer, policy_of(config)))
    with partitionable():
        key = jax.random.split(new_key(config.trainer.seed))[1]
    return flatten(dataclasses.replace(state, key=key))


def run_state(config: TrainLmConfig, step: int, optimizer_count: int, schedule_count: int) -> dict[str, ForeignValue]:
    """Return the state of train.json, without data, after ``step`` updates."""
    schedule = config.trainer.batch_schedule()
    return {
        "step": step, "optimizer_count": optimizer_count, "schedule_count": schedule_count,
        "next_sample": schedule.first_sample(step), "batch_schedule": schedule.to_json(), "seed": config.trainer.seed,
        "seq_len": config.model.seq_len, "shuffle": config.data.shuffle, "data_digest": "",
        "tokenizer": config.data.given_tokenizer,
    }  # fmt: skip


def check_fit(directory: str, *, unused: Iterable[str], missing: Iterable[str], misshapen: Iterable[str]) -> None:
    """Check that the arrays of a checkpoint are those of its configuration.

    Raises:
        ConversionError: Some are left over, missing or of another shape.
    """
    problems = [
        f"{what}: {', '.join(names[:10])}{' ...' if names[10:] else ''}"
        for what, names in (
            ("unused", sorted(unused)),
            ("missing", sorted(missing)),
            ("misshapen", sorted(misshapen)),
        )
        if names
    ]
    if problems:
        raise ConversionError(f"{directory}: the arrays do not fit the configuration; {'; '.join(problems)}")


def check_all_made(directory: str, arrays: Iterable[ImportedArray], state: Iterable[str]) -> None:
    """Check that every array of the state has a source.

    Raises:
        ConversionError: One has none.
    """
    others = sorted(set(state) - {array.name for array in arrays})
    if others:
        raise ConversionError(f"{directory}: these arrays of the state have no source: {', '.join(others)}")


def constant(array: LogicalArray, value: object) -> ImportedArray:
    """Return ``array`` filled with ``value``; None: its value in ``state_arrays``."""

    def pieces(plane: int, read: None) -> list[Piece]:
        del plane, read
        values = np.asarray(array.value) if value is None else np.asarray(value, numpy_dtype(array.dtype))
        return [(full_box(array.shape), np.broadcast_to(values, array.shape))]

    return ImportedArray(array.name, array.axes, array.shape, array.dtype, pieces)


def encoded_model(model: LmConfig) -> dict[str, Any]:
    """Return ``model:`` with all defaults."""
    encoded: dict[str, JsonValue] = draccus.encode(TrainLmConfig(model=model))["model"]
    return encoded
