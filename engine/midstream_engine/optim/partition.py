"""An optimizer for a part of a model's arrays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax
from haliax import NamedArray

from midstream_engine.array_types import Leaf, OptimizerState, PyTree

Selection = Callable[[PyTree], PyTree]  # from a model to the same tree with True or False instead of each of its arrays


def on_part(inner: optax.GradientTransformation, selection: Selection) -> optax.GradientTransformation:
    """Return ``inner`` for the arrays that ``selection`` marks.

    Updates of the others pass unchanged.

    The state is that of ``inner`` for a model with None instead of the other arrays.
    """

    def init(params: PyTree) -> PyTree:
        return inner.init(_selected(params, selection(params)))

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None) -> tuple[PyTree, PyTree]:
        marks = selection(updates)
        selected = None if params is None else _selected(params, marks)
        changed, after = inner.update(_selected(updates, marks), state, selected)
        return jax.tree.map(_first, changed, updates, is_leaf=_is_array_or_none), after

    return optax.GradientTransformation(init, update)


def others(selection: Selection) -> Selection:
    """Return the selection of the arrays that ``selection`` does not mark."""
    return lambda model: jax.tree.map(lambda mark: not mark, selection(model))


def both(first: Selection, second: Selection) -> Selection:
    """Return the selection of the arrays that both mark."""
    return lambda model: jax.tree.map(lambda mark, other: mark and other, first(model), second(model))


def _selected(tree: PyTree, marks: PyTree) -> PyTree:
    return jax.tree.map(lambda mark, array: array if mark else None, marks, tree)


def _first(changed: PyTree, before: PyTree) -> PyTree:
    return before if changed is None else changed


def _is_array_or_none(node: Leaf) -> bool:
    return node is None or isinstance(node, NamedArray)
