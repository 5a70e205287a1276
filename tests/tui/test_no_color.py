"""NO_COLOR: greys alone, and nothing that only a colour would say."""

from __future__ import annotations

import pytest

from tui import worlds
from tui.looking import app_over, screen_text, settle


async def test_no_color_is_honoured_and_the_selection_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        colours = {
            colour.triplet
            for strip in app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour is not None and colour.triplet is not None
        }
        assert colours, "something is drawn"
        assert {colour for colour in colours if len(set(colour)) != 1} == set()
        assert any(line.startswith(" > gpt2-medium") for line in screen_text(app).splitlines())


async def test_with_colours_there_are_colours() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        strips = app.screen._compositor.render_strips()
        triplets = {s.style.color.triplet for strip in strips for s in strip if s.style and s.style.color}
        assert any(triplet is not None and len(set(triplet)) == 3 for triplet in triplets)
