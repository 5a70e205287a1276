"""Random keys of one generator, whatever the options of jax are.

Its variables JAX_DEFAULT_PRNG_IMPL and JAX_THREEFRY_PARTITIONABLE have no effect. With ``rbg``, dropout would depend on
the division into micro-batches: all of its examples get the numbers of the first one's key. Without partitions it draws
other numbers, so that hosts with different settings would.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
from jaxtyping import PRNGKeyArray

GENERATOR = "threefry2x32"


def new_key(seed: int) -> PRNGKeyArray:
    """Return the key of a seed."""
    return jax.random.key(seed, impl=GENERATOR)


def key_of(raw: jax.Array) -> PRNGKeyArray:
    """Return the key of its numbers, uint32 [2]."""
    return jax.random.wrap_key_data(raw, impl=GENERATOR)


def partitionable() -> AbstractContextManager[None]:
    """Context in which functions are traced that draw numbers."""
    return jax.threefry_partitionable(True)
