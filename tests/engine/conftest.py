"""Set jax up: on the CPU with eight virtual devices."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import support.engines.jax_devices  # noqa: F401


@pytest.fixture(autouse=True)
def _same_platforms() -> Iterator[None]:
    """Take back the platform that `convert.main` chooses for its process."""
    before = os.environ.get("JAX_PLATFORMS")
    yield
    if before is None:
        os.environ.pop("JAX_PLATFORMS", None)
