"""Save two checkpoints with Orbax's manager, as MaxText does: ``python save_orbax.py OUT``."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp


def main() -> None:
    """Save a small training state at steps 2 and 4."""
    state = {
        "params": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.zeros(4)},
        "opt_state": {"mu": {"kernel": jnp.ones((3, 4))}, "count": jnp.array(4)},
        "step": jnp.array(4),
    }
    with ocp.CheckpointManager(sys.argv[1], item_names=("items",)) as manager:
        for step in (2, 4):
            manager.save(step, args=ocp.args.Composite(items=ocp.args.StandardSave(state)))


main()
