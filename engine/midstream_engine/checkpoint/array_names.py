"""Logical names: a pytree of arrays as a flat dict.

The dict is the same on every mesh and process.

``model/blocks/attn/qkv/weight`` is made of field names, dict keys and indices on the way from the root to the leaf. A
haliax NamedArray is one leaf and keeps its axis names; the axes of a plain array are ``dim_0, dim_1, ...``. A typed
PRNG key becomes its key data with one more axis, named after the generator (``key<fry>``), so that another generator is
a difference of axes and not an unnoticed reinterpretation.

Other leaves (functions, Python numbers, strings) belong to the configuration: they are not saved, and a restored tree
takes them from its template.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import jax
import numpy as np
from haliax import NamedArray  # pyright: ignore[reportMissingTypeStubs]
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from midstream_engine.array_types import Leaf, PathKey, PyTree
from midstream_engine.checkpoint.jax_functions import functions

_KEY_FIELDS: dict[type, str] = {GetAttrKey: "name", DictKey: "key", SequenceKey: "idx", FlattenedIndexKey: "key"}
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class LogicalArray:
    """One array of a tree.

    ``value`` is a jax or numpy array, or a ShapeDtypeStruct of a template. Of a typed PRNG key it is the key data.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str  # numpy's name, which is zarr's too: "float32", "bfloat16", "uint32", "bool"
    value: Leaf


def flatten(tree: PyTree) -> dict[str, LogicalArray]:
    """Return every array leaf of ``tree`` by its logical name, sorted by name.

    Raises:
        ValueError: A name cannot be a path, or two leaves have the same name.
    """
    arrays: dict[str, LogicalArray] = {}
    for path, leaf in _leaves(tree):
        array = _array_of(leaf)
        if array is None:
            continue
        name = _name(path)
        if name in arrays:
            raise ValueError(f"two leaves of the tree are both named {name!r}")
        axes = _axes(leaf, array)
        if _is_key(array):
            value = _key_data(array)
            axes = (*axes, str(array.dtype))
        else:
            value = array
        arrays[name] = LogicalArray(name, axes, tuple(map(int, value.shape)), np.dtype(value.dtype).name, value)
    return dict(sorted(arrays.items()))


def unflatten(template: PyTree, arrays: Mapping[str, Leaf]) -> PyTree:
    """Return ``template`` with every array leaf replaced by ``arrays[name]``.

    Key data becomes typed keys.

    Raises:
        KeyError: ``arrays`` lacks a name.
    """

    def replace(path: tuple[PathKey, ...], leaf: Leaf) -> PyTree:
        old = _array_of(leaf)
        if old is None:
            return leaf
        value: Leaf = arrays[_name(path)]
        if _is_key(old):
            value = functions.random.wrap_key_data(value, impl=_generator(old))
        return NamedArray(value, leaf.axes) if _is_named(leaf) else value

    return jax.tree_util.tree_map_with_path(replace, template, is_leaf=_is_named)


def flatten_shardings(template: PyTree, shardings: PyTree) -> dict[str, jax.sharding.Sharding]:
    """Return the sharding of each array leaf of ``template`` by logical name.

    ``shardings`` is one sharding for all, or a pytree with one sharding for each array leaf in the template's order; it
    may replace a NamedArray or the array inside it.

    Raises:
        ValueError: The number of shardings is not that of the array leaves.
    """
    names = [_name(path) for path, leaf in _leaves(template) if _array_of(leaf) is not None]
    if isinstance(shardings, jax.sharding.Sharding):
        return dict.fromkeys(names, shardings)
    leaves = jax.tree_util.tree_leaves(shardings, is_leaf=lambda node: isinstance(node, jax.sharding.Sharding))
    leaf_shardings = [leaf for leaf in leaves if isinstance(leaf, jax.sharding.Sharding)]
    if len(leaf_shardings) != len(names):
        raise ValueError(f"{len(leaf_shardings)} shardings for {len(names)} arrays: give one for each array leaf")
    return dict(zip(names, leaf_shardings, strict=True))


def _is_named(node: Leaf) -> bool:
    return isinstance(node, NamedArray)


def _leaves(tree: PyTree) -> list[tuple[tuple[PathKey, ...], Leaf]]:
    return functions.tree_util.tree_flatten_with_path(tree, is_leaf=_is_named)[0]


def _array_of(leaf: Leaf) -> Leaf:
    """Return the array in a leaf, None if there is none."""
    array: Leaf = leaf.array if isinstance(leaf, NamedArray) else leaf
    return array if _is_array(array) else None


def _is_array(array: Leaf) -> bool:
    return isinstance(array, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _axes(leaf: Leaf, array: Leaf) -> tuple[str, ...]:
    if isinstance(leaf, NamedArray):
        return tuple(axis.name for axis in leaf.axes)
    return tuple(f"dim_{number}" for number in range(len(array.shape)))


def _is_key(array: Leaf) -> bool:
    return jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)


def _key_data(array: Leaf) -> PyTree:
    if isinstance(array, jax.ShapeDtypeStruct):
        return functions.eval_shape(jax.random.key_data, array)
    return jax.random.key_data(array)


def _generator(keys: Leaf) -> str:
    """Return the generator of typed keys.

    jax has it for arrays and tracers, not for a ShapeDtypeStruct: therefore the keys are traced.
    """
    generators: list[str] = []

    def note(traced: Leaf) -> None:
        generators.append(functions.random.key_impl(traced))

    functions.eval_shape(note, keys)
    return generators[0]


def _name(path: tuple[PathKey, ...]) -> str:
    segments = [_segment(key) for key in path] or ["value"]
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(
                f"{segment!r} in {'/'.join(segments)!r} cannot be a part of an array's name: "
                "use letters, digits, '_', '-' and '.'"
            )
    return "/".join(segments)


def _segment(key: PathKey) -> str:
    for kind, field in _KEY_FIELDS.items():
        if isinstance(key, kind):
            return str(getattr(key, field))
    return str(key)
