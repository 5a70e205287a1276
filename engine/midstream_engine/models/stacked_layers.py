"""Stacked layers: parameters with a leading ``layers`` axis, in a loop that is compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from haliax import Axis, NamedArray
from haliax.nn import Stacked

LAYERS = "layers"
# Policies that apply within a layer; haliax's own apply to complete layers.
_INSIDE = ("dots_saveable", "dots_with_no_batch_dims_saveable")


def stack(num_layers: int, block: type, remat: bool | str) -> Callable[..., Stacked[Any]]:
    """Return an initializer of ``num_layers`` blocks from ``block.init``'s arguments.

    ``remat``: ``gradient_checkpointing`` of the configuration.
    """
    policy: Any = False if remat in _INSIDE else remat
    return Stacked.init(Axis(LAYERS, num_layers), block, gradient_checkpointing=policy)


def fold(blocks: Stacked[Any], remat: bool | str, x: NamedArray, *arguments: Any) -> NamedArray:
    """Apply all blocks to ``x``, each with ``arguments`` (of those with a ``layers`` axis: its slice)."""
    if remat not in _INSIDE:
        return blocks.fold(x, *arguments)
    policy = getattr(jax.checkpoint_policies, str(remat))

    def body(block: Any, carry: NamedArray, *rest: Any) -> NamedArray:
        # Within a scan nothing can be merged across iterations, so prevention is unnecessary.
        return jax.checkpoint(lambda *inputs: block(*inputs), policy=policy, prevent_cse=False)(carry, *rest)

    return blocks.fold_via(body)(x, *arguments)
