"""Which arrays of the model decay."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax

from midstream_engine.config.optimizer import OptimizerConfig


def decay_mask(config: OptimizerConfig) -> Callable[[Any], Any]:
    """A function from a model to the same tree with True where weight decay applies.

    ``optimizer.weight_decay_modules`` picks arrays by parts of their dotted names (``blocks.stacked.mlp.up.weight``) or
    by a regular expression that matches from the name's start. Without it the model's own ``decayed`` decides: all but
    norms, embeddings and biases. ``default_weight_decay_mask`` true joins the two; false without names: everything.
    """
    modules, default = config.weight_decay_modules, config.default_weight_decay_mask

    def picked(name: str) -> bool:
        if isinstance(modules, str):
            return re.match(modules, name) is not None
        return any(part in name for part in modules or ())

    def mask(model: Any) -> Any:
        if modules is None:
            return jax.tree.map(lambda _: True, model) if default is False else model.decayed()
        own = jax.tree.leaves(model.decayed() if default else jax.tree.map(lambda _: False, model))
        paths, structure = jax.tree_util.tree_flatten_with_path(model)
        marks = [by_default or picked(_name(path)) for (path, _), by_default in zip(paths, own, strict=True)]
        return jax.tree.unflatten(structure, marks)

    return mask


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(part, "name", getattr(part, "key", part))) for part in path)
