"""Every theme's words are read: 4.5 : 1 at least (WCAG 2.2, success criterion 1.4.3), computed and on the screens."""

from __future__ import annotations

import pytest

from midstream.tui.palette import PALETTES
from tui import worlds
from tui.looking import app_over, settle
from tui.worlds import Answers

READ = 4.5
WORDS = ("TEXT", "DIM", "ACCENT", "GOOD", "WAIT", "BAD")
SCREENS = {
    "fleet": (worlds.big_fleet(), (), ()),
    "compared": (worlds.big_fleet(), (), ("j", "space", "j", "space", "enter", "left", "left")),
    "migration": (worlds.moved_fleet(), (worlds.migration(),), ("3", "enter")),
    "preflight": (worlds.small_fleet(), (), ("m", "enter")),
}

Colour = tuple[int, int, int]


def luminance(colour: Colour) -> float:
    """Relative, 0..1 (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (value / 255 for value in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Colour, other: Colour) -> float:
    """1..21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def parsed(colour: str) -> Colour:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return red, green, blue


def test_the_formula_is_that_of_the_standard() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)  # the well-known #777


@pytest.mark.parametrize("name", PALETTES)
def test_every_colour_of_words_is_read_on_every_ground(name: str) -> None:
    palette = PALETTES[name]
    grounds = (palette.BACKGROUND, palette.SURFACE, palette.RAISED)
    colours = [*(getattr(palette, word) for word in WORDS), *palette.SERIES]
    low = {
        f"{colour} on {ground}": contrast(parsed(colour), parsed(ground))
        for colour in colours
        for ground in grounds
        if contrast(parsed(colour), parsed(ground)) < READ
    }
    assert low == {}


@pytest.mark.parametrize("name", SCREENS)
async def test_what_is_written_on_screens_is_read_in_every_theme(name: str) -> None:
    snapshot, migrations, keys = SCREENS[name]
    app = app_over(snapshot, Answers(*migrations))
    low: dict[str, float] = {}
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: app.world.migrations == migrations)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        for theme in PALETTES:
            app.use_theme(theme)
            await settle(pilot)
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    style = segment.style
                    if style is None or style.color is None or style.bgcolor is None:
                        continue
                    front, ground = style.color.triplet, style.bgcolor.triplet
                    if front is None or ground is None or not any(sign.isalnum() for sign in segment.text):
                        continue
                    ratio = contrast((front.red, front.green, front.blue), (ground.red, ground.green, ground.blue))
                    if ratio < READ:
                        low[f"{theme}: {segment.text.strip()[:40]}"] = round(ratio, 2)
    assert low == {}
