"""NeoX's parameters by layer and name; joining parts of tensor-parallel ranks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.neox.partitions import ParameterRow

Key = tuple[int, str]  # layer as NeoX counts them: 0 the embedding, blocks from 2; name inside of it
FIRST_BLOCK = 2

_NAME = re.compile(r"(?:sequential\.)?(\d+)\.(.+)")
TIED = "tied_modules.embed.word_embeddings.weight"
# Constants that the configuration implies: rotary frequencies, causal masks.
CONSTANTS = re.compile(r".*(inv_freq|masked_bias|attention\.bias)$")
_GATED = ("mlp.linear1", "mlp.dense_h_to_4h")  # with a gated activation [up; gate], else up alone
_UP = (*_GATED, "mlp.w1", "mlp.w3")
_DOWN = ("mlp.linear2", "mlp.dense_4h_to_h", "mlp.w2")
# [vocab, embed]: the embedding, the head.
ROWS = ("word_embeddings.weight", "final_linear.weight")
_SUMMED = ("attention.dense.bias", *(f"{name}.bias" for name in _DOWN))


@dataclass(frozen=True)
class MlpNames:
    """Names of an MLP's products.

    ``gate`` is ``up`` if one matrix has both, the gate below.
    """

    up: str
    gate: str
    down: str


MLPS = (
    MlpNames("mlp.linear1", "mlp.linear1", "mlp.linear2"),
    MlpNames("mlp.dense_h_to_4h", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    MlpNames("mlp.w3", "mlp.w1", "mlp.w2"),  # mlp-type llama
)


def key_of(name: str) -> Key:
    """Return the key of a parameter's name.

    The name is one in a module, a layer file (after its layer) or an optimizer.
    """
    if name == TIED:
        return 0, "word_embeddings.weight"
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConversionError(f"the source has {name}, which is no parameter of GPT-NeoX's")
    return int(match[1]), match[2]


@dataclass
class Parameter:
    """One parameter: weight, masters and moments of each tensor-parallel rank.

    ``twins`` has the copy of a second pipeline stage, if there is one.
    """

    weights: dict[int, Tensor] = field(default_factory=dict)
    rows: dict[int, dict[str, ParameterRow]] = field(default_factory=dict)
    twins: dict[int, dict[str, ParameterRow]] = field(default_factory=dict)


@dataclass(frozen=True)
class Merging:
    """The model's properties that are needed to join ranks.

    ``blocked``: grouped queries are [queries; keys; values] on each rank.
    """

    heads: int
    groups: int
    blocked: bool
    gated: bool
    parallel_residual: bool
    differing: set[str] = field(default_factory=set)  # replicated parameters whose ranks had drifted apart
    summed: set[str] = field(default_factory=set)

    def axis(self, name: str) -> int | None:
        """Return the axis that is divided over ranks; None: each rank has all of it."""
        if name in ROWS or name.startswith("attention.query_key_value") or name.startswith(_UP):
            return 0
        return 1 if name == "attention.dense.weight" or name in [f"{down}.weight" for down in _DOWN] else None

    def merge(self, name: str, kind: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return one array of the ranks' parts. ``kind``: fp32, exp_avg or exp_avg_sq."""
        if len(parts) == 1:
            return parts[0]
        if name.startswith("attention.query_key_value") and self.groups != self.heads and self.blocked:
            return _interleaved(parts, [self.heads, self.groups, self.groups])
        if name.startswith(_GATED) and self.gated:
            return _interleaved(parts, [1, 1])
        axis = self.axis(name)
        if axis is not None:
            return np.concatenate(parts, axis)
        if name in _SUMMED and self.parallel_residual:
            self.summed.add(name)
            if kind == "fp32":
                return np.asarray(np.sum(np.stack(parts), 0, dtype=np.float32))
        if all(np.array_equal(parts[0], part) for part in parts[1:]):
            return parts[0]
        if name not in _SUMMED:
            self.differing.add(name)
        return np.asarray(np.mean(np.stack(parts), 0, dtype=np.float64), np.float32)

    def split(self, name: str, kind: str, array: np.ndarray, ranks: int) -> list[np.ndarray]:
        """Return each rank's part of an array, which `merge` joins again.

        Raises:
            ConversionError: It cannot be divided over so many ranks.
        """
        axis = self.axis(name)
        if axis is None:
            alone = name in _SUMMED and self.parallel_residual and kind == "fp32"
            return [array if rank == 0 or not alone else np.zeros_like(array) for rank in range(ranks)]
        shares = [1]
        if name.startswith("attention.query_key_value") and self.groups != self.heads and self.blocked:
            shares = [self.heads, self.groups, self.groups]
        elif name.startswith(_GATED) and self.gated:
            shares = [1, 1]
        edges = np.cumsum(shares)[:-1] * array.shape[axis] // sum(shares)
        parts = [np.split(stack, ranks, axis) for stack in np.split(array, edges, axis)]
        return [np.concatenate([stack[rank] for stack in parts], axis) for rank in range(ranks)]

    def rank_shape(self, name: str, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """Return the shape of each part of `split`.

        Raises:
            ConversionError: It cannot be divided over so many ranks.
        """
        axis = self.axis(name)
        if axis is None:
            return shape
        units = shape[axis]
        if name.startswith("attention."):
            units = math.gcd(self.heads, self.groups)
        elif name.startswith(_GATED) and self.gated:
            units //= 2
        if units % ranks:
            what = "heads" if name.startswith("attention.") else "rows" if axis == 0 else "columns"
            raise ConversionError(f"{name}: {units} {what} cannot be divided over {ranks} tensor-parallel ranks")
        return (*shape[:axis], shape[axis] // ranks, *shape[axis + 1 :])

    def full_shape(self, name: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return the shape of ``merge``'s result.

        Raises:
            ConversionError: The ranks' shapes differ.
        """
        axis = self.axis(name)
        if len(set(shapes)) != 1:
            raise ConversionError(f"{name} has other shapes on other tensor-parallel ranks: {sorted(set(shapes))}")
        first = list(shapes[0])
        if axis is not None:
            first[axis] *= len(shapes)
        return tuple(first)


def _interleaved(parts: Sequence[np.ndarray], shares: Sequence[int]) -> np.ndarray:
    """Join ranks that each have their share of several stacked matrices."""
    rows, unit = parts[0].shape[0], sum(shares)
    edges = np.cumsum([0, *(rows * share // unit for share in shares)])
    return np.concatenate([part[start:stop] for start, stop in itertools.pairwise(edges) for part in parts])
