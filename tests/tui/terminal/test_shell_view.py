"""The shell on a host: what it printed stays on the terminal if it was of no use."""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet import shell_view


@pytest.mark.parametrize(
    ("code", "seconds", "waits"),
    [(0, 0.0, ""), (1, 1.0, "the shell ended at once with exit code 1; "), (1, 60.0, ""), (255, 60.0, "press enter")],
)
def test_shell_that_ends_at_once_leaves_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, seconds: float, waits: str
) -> None:
    """A login that is refused prints why and ends with its own code, not with that of ssh."""
    clock = iter((100.0, 100.0 + seconds))
    monkeypatch.setattr(shell_view, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    typed = io.StringIO("\n")
    monkeypatch.setattr(sys, "stdin", typed)
    actions = SimpleNamespace(shell=lambda host: code)
    screen = SimpleNamespace(
        app=SimpleNamespace(suspend=contextlib.nullcontext), midstream=SimpleNamespace(actions=actions)
    )
    shell_view.open_on(cast(MidstreamScreen, cast(Any, screen)), "lab")
    assert (typed.read() == "") == bool(waits), "it waits for a key only then"
    assert waits in capsys.readouterr().err
