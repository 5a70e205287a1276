"""Fixtures of the tests of slices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulators.google.metadata import MetadataServer


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    """The metadata server of one machine."""
    with MetadataServer() as server:
        yield server
