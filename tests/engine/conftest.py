"""Set jax up: on the CPU with eight virtual devices."""

from __future__ import annotations

import support.engines.jax_devices  # noqa: F401
