"""Weight decay: its size, and the arrays to which it applies."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import optax
from jax.tree_util import FlattenedIndexKey

from midstream_engine.array_types import OptimizerState, PathKey, PyTree
from midstream_engine.config.optimizer import OptimizerConfig


def decay(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Return the decoupled weight decay: ``weight_decay`` times the parameters.

    With ``adamc_weight_decay`` it is multiplied by the learning rate as a fraction of its peak; the updates are
    multiplied by the rate afterwards, so the decay falls with the square of the rate (AdamC: Defazio, arXiv 2506.02285,
    2025). ``update`` then needs ``learning_rate``, float32 [].
    """
    mask = decay_mask(config)
    if not getattr(config, "adamc_weight_decay", False):
        return optax.with_extra_args_support(optax.add_decayed_weights(config.weight_decay, mask))

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None, **extra: PyTree) -> tuple[PyTree, PyTree]:
        now = config.weight_decay * extra["learning_rate"] / config.learning_rate
        return optax.add_decayed_weights(now, mask).update(updates, state, params)

    return optax.GradientTransformationExtraArgs(optax.add_decayed_weights(config.weight_decay, mask).init, update)


def decay_mask(config: OptimizerConfig) -> Callable[[PyTree], PyTree]:
    """Return a function that marks the arrays of a model to which decay applies.

    The function returns the same tree with True at these arrays.

    ``optimizer.weight_decay_modules`` selects arrays by parts of their dotted names (``blocks.stacked.mlp.up.weight``)
    or by a regular expression that matches from the start. Without it the model's own ``decayed`` applies: all but
    norms, embeddings and biases. ``default_weight_decay_mask`` true joins the two; false without names: everything.
    """
    modules, default = config.weight_decay_modules, config.default_weight_decay_mask

    def picked(name: str) -> bool:
        if isinstance(modules, str):
            return re.match(modules, name) is not None
        return any(module in name for module in modules or ())

    def mask(model: PyTree) -> PyTree:
        if modules is None:
            return jax.tree.map(lambda _: True, model) if default is False else model.decayed()
        own = jax.tree.leaves(model.decayed() if default else jax.tree.map(lambda _: False, model))
        paths, structure = jax.tree_util.tree_flatten_with_path(model)
        marks = [by_default or picked(_name(path)) for (path, _), by_default in zip(paths, own, strict=True)]
        return jax.tree.unflatten(structure, marks)

    return mask


def _name(path: tuple[PathKey, ...]) -> str:
    """Return an array's name, without the index at which haliax has its numbers."""
    keys = [key for key in path if not isinstance(key, FlattenedIndexKey)]
    return ".".join(str(getattr(key, "name", getattr(key, "key", key))) for key in keys)
