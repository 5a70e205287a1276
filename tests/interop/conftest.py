"""Jax on the CPU, and haliax imported once without its warning."""

from __future__ import annotations

import warnings

import jax

jax.config.update("jax_platforms", "cpu")

with warnings.catch_warnings():
    # haliax 1.4 imports the old name of jax.shard_map.
    warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
    import haliax  # noqa: F401
