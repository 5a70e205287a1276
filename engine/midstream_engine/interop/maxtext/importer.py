"""Import of MaxText's checkpoints of a Llama: weights, moments and counts."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_core.maxtext_checkpoints import ITEM, saved_step
from midstream_core.precision import precision_of
from midstream_engine.checkpoint.array_names import LogicalArray
from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LlamaConfig
from midstream_engine.interop.decayed_arrays import decay_settings
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import common_dtype
from midstream_engine.interop.exported_settings import first_difference
from midstream_engine.interop.foreign_run import (
    ForeignRun,
    check_all_made,
    check_fit,
    constant,
    run_state,
    state_arrays,
)
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.imported_array import ImportedArray, Piece
from midstream_engine.interop.maxtext.configuration import neighbours, rate_of, read_config, translate
from midstream_engine.interop.maxtext.names import (
    ADAM,
    COUNTS,
    GENERATORS,
    KINDS,
    PARAMETERS,
    TABLE,
    ArrayRule,
    rules_of,
)
from midstream_engine.interop.maxtext.orbax import OrbaxCheckpoint, find

_LOADER = "iter"  # item of grain's iterator
_QUERY, _KEY, _MLP = "self_attention.query.kernel", "self_attention.key.kernel", "mlp.wi_0.kernel"
_SQUARES = f"{ADAM}nu."


def open_maxtext(path: str, config_path: str | None = None) -> ForeignRun:
    """Open the checkpoint at ``path``: one, or the newest of a run.

    Args:
        path: The checkpoint, the folder of checkpoints, or the run.
        config_path: MaxText's log, or a file of its settings; None: ``maxtext.yml`` there or above it.

    Raises:
        ConversionError: An array is unused, missing, damaged or of another shape, or the configuration does not fit.
    """
    checkpoint = OrbaxCheckpoint(find(path))
    settings = read_config(checkpoint.directory, config_path)
    layers = _Layers.of(checkpoint, settings)
    notes: list[str] = []
    mapping = translate(settings, layers.shapes(), notes)
    rows = checkpoint.arrays[PARAMETERS + TABLE].shape[0]
    _complete(mapping, checkpoint, rows)
    model = from_mapping(mapping).config.model
    assert isinstance(model, LlamaConfig)
    rules = rules_of(model, neighbours=neighbours(settings))
    mapping["optimizer"] |= decay_settings({rule.ours: _decays(settings, rule, layers) for rule in rules})
    config = from_mapping(mapping).config
    logical = state_arrays(config, rows)
    arrays = [layers.array(logical[ours + rule.ours], rule, theirs) for ours, theirs in KINDS.items() for rule in rules]
    others = [name for name in checkpoint.arrays if name.startswith(GENERATORS)]
    unused = checkpoint.arrays.keys() - layers.used - set(others) - set(COUNTS)
    missing = layers.missing + [name for name in COUNTS if name not in checkpoint.arrays]
    check_fit(checkpoint.directory, unused=unused, missing=missing, misshapen=layers.misshapen)
    step, taken, scheduled = (int(checkpoint.arrays[name].read()) for name in COUNTS)
    _check_rates(mapping, settings, scheduled, step)
    arrays += [
        constant(logical["optimizer/adam/count"], taken),
        constant(logical["optimizer/schedule/count"], scheduled),
        constant(logical["key"], None),
    ]
    check_all_made(checkpoint.directory, arrays, logical)
    notes += _notes(checkpoint, settings, step, generators=bool(others))
    provenance = {
        "time": time.time(), "converted_from": "maxtext", "source": checkpoint.directory, "vocab_size": rows,
    }  # fmt: skip
    state = run_state(config, step, taken, scheduled)
    return ForeignRun(
        "maxtext", step, mapping, arrays, state, provenance, notes, checkpoint.stamp, _remarks, _sound, None
    )


@dataclass
class _Layers:
    """Sources of our arrays in a checkpoint, and what does not fit.

    ``axis``: of the layers of scanned ones; None: each layer has arrays of its own.
    """

    checkpoint: OrbaxCheckpoint
    axis: int | None
    number: int
    used: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])
    misshapen: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, checkpoint: OrbaxCheckpoint, settings: ForeignConfig) -> _Layers:
        """Find how the layers are stored.

        Raises:
            ConversionError: There is no Llama, no optimizer, or its layers are on another axis.
        """
        layers, scanned = cls(checkpoint, None, 0), f"{PARAMETERS}decoder.layers.{_MLP}"
        if scanned in checkpoint.arrays:
            axis = int(settings.get("param_scan_axis", 1))
            if axis not in (0, 1):
                raise ConversionError(f"param_scan_axis: {axis} is not read; 0 and 1 are")
            layers = cls(checkpoint, axis, checkpoint.arrays[scanned].shape[axis])
        else:
            while layers._name(layers.number, _MLP) in checkpoint.arrays:
                layers.number += 1
        needed = [PARAMETERS + TABLE, *(layers._name(0, name) for name in (_MLP, _QUERY, _KEY))]
        lacking = [name for name in needed if name not in checkpoint.arrays]
        if lacking:
            raise ConversionError(f"{checkpoint.directory}: has no {lacking[0]}: MaxText's names of a Llama are read")
        if not any(name.startswith(_SQUARES) for name in checkpoint.arrays):
            raise ConversionError(
                f"{checkpoint.directory}: has no {_SQUARES}*: the state of AdamW is missing (hint: MaxText's own "
                "checkpoints have it, those with parameters alone have not)"
            )
        return layers

    def shapes(self) -> dict[str, int]:
        """Return the fields of our model that the arrays show."""
        embed, mlp = self._inner(_MLP)
        (_, heads, size), (_, kv_heads, _) = self._inner(_QUERY), self._inner(_KEY)
        return {
            "hidden_dim": embed, "intermediate_dim": mlp, "num_layers": self.number, "num_heads": heads,
            "num_kv_heads": kv_heads, "head_dim": size,
            "pad_vocab_to_multiple": self.checkpoint.arrays[PARAMETERS + TABLE].shape[0],
        }  # fmt: skip

    def names(self, rule: ArrayRule, prefix: str) -> list[str]:
        """Return the names of our array there: of each layer, if it has arrays of its own."""
        if not rule.stacked or self.axis is not None:
            return [prefix + rule.theirs.format("")]
        return [prefix + rule.theirs.format(f"_{layer}") for layer in range(self.number)]

    def array(self, array: LogicalArray, rule: ArrayRule, prefix: str) -> ImportedArray:
        """Return our array with its source."""
        names = self.names(rule, prefix)
        axis = self.axis if rule.stacked else None
        expected = array.shape[1:] if rule.stacked else array.shape
        if axis is not None:
            expected = (*expected[:axis], self.number, *expected[axis:])
        for name in names:
            self._check(name, expected)
        # A chunk that has all layers is read once, and not for each.
        source = self.checkpoint.arrays.get(names[0])
        complete = axis is not None and source is not None and source.chunk[axis] > 1
        planes = array.shape[0] if rule.stacked and not complete else 1
        return ImportedArray(
            array.name, array.axes, array.shape, array.dtype, partial(_pieces, rule, array.shape, axis, planes),
            partial(self._read, names, axis, planes), planes,
        )  # fmt: skip

    def _read(self, names: list[str], axis: int | None, planes: int, plane: int) -> np.ndarray:
        name = names[plane if len(names) > 1 else 0]
        layer = plane if axis is not None and planes > 1 else None
        values = self.checkpoint.arrays[name].read(axis or 0, layer)
        if name.startswith(_SQUARES) and (values < 0).any():
            raise ConversionError(f"{name}: has a second moment below 0: the checkpoint is damaged")
        return values

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        self.used.add(name)
        stored = self.checkpoint.arrays.get(name)
        if stored is None:
            self.missing.append(name)
        elif stored.shape != shape:
            self.misshapen.append(f"{name} {stored.shape}")

    def _name(self, layer: int, name: str) -> str:
        return f"{PARAMETERS}decoder.layers{'' if self.axis is not None else f'_{layer}'}.{name}"

    def _inner(self, name: str) -> tuple[int, ...]:
        """Return the shape of one layer of an array."""
        shape = self.checkpoint.arrays[self._name(0, name)].shape
        return shape if self.axis is None else (*shape[: self.axis], *shape[self.axis + 1 :])


def _pieces(
    rule: ArrayRule, shape: tuple[int, ...], axis: int | None, planes: int, plane: int, read: np.ndarray
) -> list[Piece]:
    if not rule.stacked:
        return [(full_box(shape), rule.to_ours(read))]
    if planes == 1 and axis is not None:
        return [(full_box(shape), rule.to_ours(np.moveaxis(read, axis, 0)))]
    return [(((plane, plane + 1), *full_box(shape[1:])), rule.to_ours(read)[None])]


def _complete(mapping: dict[str, ForeignValue], checkpoint: OrbaxCheckpoint, rows: int) -> None:
    """Add the checkpoint's types and rows to ``mapping``."""
    types = {theirs: common_dtype({array.dtype for name, array in checkpoint.arrays.items() if name.startswith(theirs)})
             for theirs in KINDS.values()}  # fmt: skip
    weights, mu, nu = types.values()
    mapping["optimizer"] |= {"mu_dtype": mu, "nu_dtype": nu}
    mapping["trainer"]["mp"] = str(precision_of(mapping["trainer"]["mp"]).with_parameters(weights))
    mapping["data"] = {"tokenizer": f"ids:{rows}", "next_token": True}


def _decays(settings: ForeignConfig, rule: ArrayRule, layers: _Layers) -> bool:
    """Return whether an array decays: ``adamw_mask`` selects those that do not.

    Raises:
        ConversionError: It does in some layers alone.
    """
    paths = [name.replace(".", "/") for name in layers.names(rule, "")]
    try:
        masks = [re.compile(mask) for mask in settings.get("adamw_mask") or []]
    except (re.error, TypeError) as error:
        raise ConversionError(f"adamw_mask: {settings['adamw_mask']!r}: {error}") from None
    decays = {not any(mask.search(path) for mask in masks) for path in paths}
    if len(decays) > 1:
        raise ConversionError(f"adamw_mask: {rule.theirs} decays in some layers alone, which has no counterpart")
    return decays.pop()


def _check_rates(mapping: ForeignConfig, settings: ForeignConfig, count: int, step: int) -> None:
    """Compare the learning rate of every update that is left with MaxText's.

    Raises:
        ConversionError: One differs.
    """
    total = int(mapping["trainer"]["num_train_steps"])
    ours = partial(rate_at, rate_parts(rate_settings(mapping["optimizer"]), total))
    differing = first_difference(ours, rate_of(settings), range(count, count + total - step))
    if differing:
        number, here, there = differing
        raise ConversionError(f"the learning rate of update {number} would be {here:.9g} here; it is {there:.9g}")


def _notes(checkpoint: OrbaxCheckpoint, settings: ForeignConfig, step: int, *, generators: bool) -> Iterator[str]:
    named = saved_step(checkpoint.directory)
    if named != step:
        name = os.path.basename(checkpoint.directory)
        yield f"its arrays have {step} updates, whatever its name says: MaxText would name it {step - 1}, not {name}"
    if os.path.exists(os.path.join(checkpoint.directory, _LOADER)):
        yield f"{_LOADER}: the loader's position is not carried over: name the data, and from where"
    else:
        yield "the data is not in the checkpoint: name it, and from where"
    if settings["logits_via_embedding"] and settings["dtype"] != "bfloat16":
        yield f"logits_via_embedding: MaxText rounds the head to bfloat16 also in {settings['dtype']}, not here"
    if generators:
        yield f"{GENERATORS}*: states of random generators are left out; without dropout no number depends on them"
    if settings.get("packing"):
        yield ("packing: rows of several documents are attended to within each; that is "
               "data.block_cross_document_attention here")  # fmt: skip


def _remarks() -> list[str]:
    return [
        f"arrays in {ITEM} have no checksum: the values that were read are finite, with no second moment below 0, and "
        "a bit that changed before they were read would not show otherwise"
    ]


def _sound() -> None:
    """Do nothing: values are checked when they are read; there are no checksums."""
