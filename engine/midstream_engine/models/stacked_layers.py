"""Stacked layers: parameters with a leading ``layers`` axis, in a loop.

The loop is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from haliax import Axis, NamedArray
from haliax.nn import Stacked
from jax.ad_checkpoint import checkpoint_name

from midstream_core.stored_activations import stored_names
from midstream_engine.array_types import PyTree
from midstream_engine.config.model import REMAT_BY_MEMORY

LAYERS = "layers"
# Policies that apply within a layer; haliax's own apply to complete layers.
_INSIDE = ("dots_saveable", "dots_with_no_batch_dims_saveable")


def saveable(x: NamedArray, name: str) -> NamedArray:
    """Mark ``x`` as an activation that ``gradient_checkpointing`` may store.

    ``name``: one of ``arithmetic.stored_activations.NAMES``.
    """
    return NamedArray(checkpoint_name(x.array, name), x.axes)


def _policy(remat: bool | str) -> PyTree:
    """Return jax's policy within a layer; None where haliax's own decides."""
    if remat in _INSIDE:
        return getattr(jax.checkpoint_policies, str(remat))
    names = stored_names(remat)
    return jax.checkpoint_policies.save_only_these_names(*names) if names else None


def stack(num_layers: int, block: type, remat: bool | str) -> Callable[..., Stacked[PyTree]]:
    """Return an initializer of ``num_layers`` blocks from ``block.init``'s arguments.

    ``remat``: ``gradient_checkpointing`` of the configuration.
    """
    own: Any = remat if _policy(remat) is None else False
    own = True if own == REMAT_BY_MEMORY else own  # a plan for devices has chosen names
    return Stacked.init(Axis(LAYERS, num_layers), block, gradient_checkpointing=own)


def fold(blocks: Stacked[PyTree], remat: bool | str, x: NamedArray, *arguments: PyTree) -> NamedArray:
    """Apply all blocks to ``x``, each with ``arguments``.

    Of an argument with a ``layers`` axis a block gets its slice.
    """
    policy = _policy(remat)
    if policy is None:
        return blocks.fold(x, *arguments)

    def body(block: PyTree, carry: NamedArray, *rest: PyTree) -> NamedArray:
        # Within a scan nothing can be merged across iterations, so prevention is unnecessary.
        return jax.checkpoint(lambda *inputs: block(*inputs), policy=policy, prevent_cse=False)(carry, *rest)

    return blocks.fold_via(body)(x, *arguments)
