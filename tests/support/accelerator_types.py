"""Accelerators by their names, as tests name them."""

from __future__ import annotations

from midstream_core.accelerator_types import AcceleratorType, parse


def known(name: str) -> AcceleratorType:
    """Return the accelerator of a name that is known."""
    found = parse(name)
    assert found is not None
    return found
