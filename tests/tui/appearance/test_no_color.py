"""NO_COLOR: greys only, and no information by colour alone."""

from __future__ import annotations

from typing import Any

import pytest

from support.tui import fleets
from support.tui.screens import app_over, screen_text, settle, strips

TERMINALS = pytest.mark.parametrize("terminal", [("xterm-256color", "truecolor"), ("screen-256color", "")])


def colours_of(app: Any) -> set[tuple[int, ...]]:
    """The colours on the screen, as red, green and blue."""
    return {
        tuple(colour.get_truecolor())
        for strip in strips(app)
        for segment in strip
        if segment.style is not None
        for colour in (segment.style.color, segment.style.bgcolor)
        if colour is not None and not colour.is_default
    }


def set_terminal(monkeypatch: pytest.MonkeyPatch, terminal: tuple[str, str]) -> None:
    monkeypatch.setenv("TERM", terminal[0])
    monkeypatch.setenv("COLORTERM", terminal[1])


@TERMINALS
async def test_no_color_is_honoured_and_selection_visible(
    terminal: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    set_terminal(monkeypatch, terminal)
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        colours = colours_of(app)
        assert colours, "something is drawn"
        assert {colour for colour in colours if len(set(colour)) != 1} == set()
        assert any(line.startswith(" > gpt2-medium") for line in screen_text(app).splitlines())


@TERMINALS
async def test_colour_is_used_without_no_color(terminal: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_terminal(monkeypatch, terminal)
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert any(len(set(colour)) == 3 for colour in colours_of(app))
