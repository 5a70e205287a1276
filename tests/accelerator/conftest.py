"""Tests on the accelerators of this machine: `make test-accelerator`. Where jax has none, they are skipped."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import pytest

from simulators.sshd import lab
from support.command_line import runs

__all__ = ["lab", "runs"]

with warnings.catch_warnings():
    # haliax 1.4 imports the old name of jax.shard_map.
    warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
    import haliax  # noqa: F401


@pytest.fixture(scope="session")
def platform() -> str:
    """The platform of jax's devices: "gpu" or "tpu". This process leaves memory to the programs that a test starts."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # read when the backend starts, here
        found = jax.default_backend()
    if found == "cpu":
        pytest.skip("jax has no accelerator: `make test-accelerator` on a machine with one")
    return found


@pytest.fixture
def accelerator(platform: str) -> Any:
    """The first accelerator of this process."""
    return jax.local_devices(backend=platform)[0]
