"""Muon for matrices of blocks: momentum, orthogonalised by Newton-Schulz.

The method is of Jordan et al. (2024).
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from haliax import NamedArray

from midstream_engine.array_types import Leaf, OptimizerState, PathKey, PyTree
from midstream_engine.config.muon import COEFFICIENTS, MuonConfig
from midstream_engine.models.layers import Linear
from midstream_engine.optim.adam import ADAM
from midstream_engine.optim.decay import decay_mask
from midstream_engine.optim.partition import both, on_part, others
from midstream_engine.optim.stored_dtypes import stored_as

MUON = "muon"  # the name of the part that holds the momentum
_HEAD = "lm_head"


class MuonState(NamedTuple):
    """Decaying sum of gradients, like the matrices; None for other arrays. Saved."""

    momentum: PyTree


def muon_parts(config: MuonConfig) -> list[tuple[str, optax.GradientTransformation]]:
    """Return the named parts: Muon for matrices, clip and Adam for the rest, decays.

    Updates of Adam's arrays are multiplied by ``adam_lr`` / ``learning_rate``: the schedules of both have the same
    shape, so the learning rate by which the chain multiplies everything is then ``adam_lr``'s.
    """
    rest = others(matrices)
    adam = stored_as(optax.scale_by_adam(config.beta1, config.beta2, config.epsilon), mu="float32", nu="float32")
    parts = [
        (MUON, on_part(stored_as(scale_by_muon(config), momentum="float32"), matrices)),
        (ADAM, on_part(adam, rest)),
    ]
    if config.max_grad_norm:
        parts.insert(0, ("clip", on_part(optax.clip_by_global_norm(config.max_grad_norm), rest)))
    decays = {"decay": (config.weight_decay, matrices), "adam_decay": (config.adam_weight_decay, rest)}
    for name, (decayed, selection) in decays.items():
        decay = config.weight_decay if decayed is None else decayed
        if decay > 0:
            parts.append((name, optax.add_decayed_weights(decay, mask=both(selection, decay_mask(config)))))
    parts.append(("adam_lr", on_part(optax.scale(config.adam_lr / config.learning_rate), rest)))
    return parts


def matrices(model: PyTree) -> PyTree:
    """Return the tree with True for weights of linear layers in blocks, else False."""

    def mark(path: tuple[PathKey, ...], node: Leaf) -> PyTree:
        if isinstance(node, Linear):
            inside = getattr(path[0], "name", "") != _HEAD
            return dataclasses.replace(
                node, weight=None if node.weight is None else inside, bias=None if node.bias is None else False
            )
        return False

    return jax.tree_util.tree_map_with_path(mark, model, is_leaf=lambda node: isinstance(node, (Linear, NamedArray)))


def scale_by_muon(config: MuonConfig) -> optax.GradientTransformation:
    """Return Muon without decay and learning rate, for weights of linear layers.

    momentum = ``config.momentum`` * momentum + gradient; the update is that momentum, or with ``nesterov`` the next one
    with the same gradient, made orthogonal and multiplied by a factor of its shape.
    """

    def init(params: PyTree) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None) -> tuple[PyTree, MuonState]:
        del params
        added = jax.tree.map(lambda past, gradient: config.momentum * past + gradient, state.momentum, updates)
        ahead = jax.tree.map(lambda past, gradient: config.momentum * past + gradient, added, updates)
        direction = ahead if config.nesterov else added
        changed = jax.tree.map(
            lambda node: _orthogonal(node, config), direction, is_leaf=lambda node: isinstance(node, Linear)
        )
        return changed, MuonState(added)

    return optax.GradientTransformation(init, update)


def _orthogonal(layer: Linear, config: MuonConfig) -> Linear:
    """Return ``layer`` with an orthogonal weight; stacked layers one by one.

    The weight counts as matrices [inputs, outputs].
    """
    if layer.weight is None:
        return layer
    own = (*layer.In, *layer.Out)
    stack = tuple(axis for axis in layer.weight.axes if axis not in own)
    ordered = layer.weight.rearrange((*stack, *own))
    inputs, outputs = (math.prod(axis.size for axis in side) for side in (layer.In, layer.Out))
    flat = ordered.array.reshape(-1, inputs, outputs)
    update = orthogonal(flat, COEFFICIENTS[config.coefficient_type], config.backend_steps, config.muon_epsilon)
    factor = 0.2 * math.sqrt(max(inputs, outputs)) if config.use_kimi_scaling else math.sqrt(max(1, outputs / inputs))
    weight = NamedArray((factor * update).reshape(ordered.array.shape), ordered.axes)
    return dataclasses.replace(layer, weight=weight.rearrange(layer.weight.axes))


def orthogonal(
    matrix: jax.Array, coefficients: tuple[tuple[float, float, float], ...], steps: int, epsilon: float
) -> jax.Array:
    """Return matrices with singular values near 1 and the same singular vectors.

    Shape [..., rows, columns].

    X = M / (|M| + epsilon), then ``steps`` times X = a X + (b A + c A A) X with A = X X^T, which maps each singular
    value s to a s + b s^3 + c s^5 (K. Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024).
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    wide = jnp.swapaxes(matrix, -1, -2) if tall else matrix  # the smaller of the two products
    wide = wide / (jnp.linalg.norm(wide, axis=(-2, -1), keepdims=True) + epsilon)
    for step in range(steps):
        a, b, c = coefficients[step % len(coefficients)]
        square = wide @ jnp.swapaxes(wide, -1, -2)
        wide = a * wide + (b * square + c * (square @ square)) @ wide
    return jnp.swapaxes(wide, -1, -2) if tall else wide
