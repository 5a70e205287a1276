"""Jax on the CPU with eight virtual devices; haliax, imported once.

For the conftest of tests that use the engine in their own process.
"""

from __future__ import annotations

import os
import warnings

import jax
import pytest

from support.engines.engine_runs import QUICK

# Jax reads these when its backend starts, here. Programs that a test starts must not inherit them.
with pytest.MonkeyPatch.context() as environment:
    environment.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICK}")
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
    jax.devices()

with warnings.catch_warnings():
    # haliax 1.4 imports the old name of jax.shard_map.
    warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
    # marin-haliax uses the mesh of a ``with`` statement.
    warnings.filterwarnings("ignore", "jax.interpreters.pxla.thread_resources is deprecated", DeprecationWarning)
    import haliax  # noqa: F401
