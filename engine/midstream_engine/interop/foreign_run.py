"""A run from elsewhere, opened: what it will be here, before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from midstream_engine.checkpoint.format.array_names import LogicalArray, flatten
from midstream_engine.checkpoint.format.boxes import whole
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.config.model import LmConfig
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.interop.imported_array import Incoming, Piece


@dataclass(frozen=True)
class ForeignRun:
    """``mapping``: the configuration that continues the run, as it is written. ``state``: train.json's, but for the
    digest of the data. ``notes``: a line for all that is not carried over as it was; ``remarks`` has more once the
    arrays are made. ``stamp``: the source as it is. ``verify`` raises ConversionError where what was read is damaged.
    ``data(place, paths)`` links the run's data, which lies at ``paths`` where any are given, under ``place``, and
    returns its directory; None: the source names none. ``tokenizer``: by name the files of its tokenizer; they
    come along with the data, or, where ``mapping`` has the tokenizer itself, as data of their own."""

    kind: str
    step: int
    mapping: dict[str, Any]
    arrays: list[Incoming]
    state: dict[str, Any]
    provenance: dict[str, Any]
    notes: list[str]
    stamp: list[Any]
    remarks: Callable[[], list[str]]
    verify: Callable[[], None]
    data: Callable[[str, Sequence[str]], str] | None
    tokenizer: Mapping[str, str] = field(default_factory=dict)


def state_arrays(config: TrainLmConfig, vocab_size: int) -> dict[str, LogicalArray]:
    """Every array of the configuration's state as a shape; the run's key, which is no zero, as itself."""
    import jax
    import jmp

    from midstream_engine.optim.adam import build_optimizer
    from midstream_engine.optim.schedule import learning_rate
    from midstream_engine.trainer.loop.train_state import abstract_state, initializer

    rate = learning_rate(config.optimizer, config.trainer.num_train_steps)
    optimizer = build_optimizer(config.optimizer, rate)
    state = abstract_state(initializer(config, vocab_size, optimizer, jmp.get_policy(config.trainer.mp)))
    key = jax.random.split(jax.random.key(config.trainer.seed))[1]
    return flatten(dataclasses.replace(state, key=key))


def constant(array: LogicalArray, value: Any) -> Incoming:
    """``array`` with ``value`` everywhere; None: as ``state_arrays`` has it."""

    def pieces(plane: int, read: None) -> list[Piece]:
        del plane, read
        found = np.asarray(array.value) if value is None else np.asarray(value, numpy_dtype(array.dtype))
        return [(whole(array.shape), np.broadcast_to(found, array.shape))]

    return Incoming(array.name, array.axes, array.shape, array.dtype, pieces)


def encoded_model(model: LmConfig) -> dict[str, Any]:
    """``model:`` with every default written out."""
    import draccus

    encoded: dict[str, Any] = draccus.encode(TrainLmConfig(model=model))["model"]
    return encoded
