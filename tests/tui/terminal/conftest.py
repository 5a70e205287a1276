"""Fixtures of the tests in a real terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.tui.terminal import Terminal


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal of its own for each test."""
    made = Terminal(tmp_path_factory.mktemp("tmux"))
    yield made
    made.close()
