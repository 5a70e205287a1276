"""Contrast of text is at least 4.5 : 1 in every theme, also with 256 and 16 colours (WCAG 2.2, criterion 1.4.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from rich.color import Color, ColorSystem
from rich.style import Style
from textual import constants
from textual.strip import Strip

from midstream.tui.style.palette import PALETTES
from midstream.tui.style.terminal_colors import VGA_16, XTERM_16, XTERM_256, contrast, reduced, reduced_style, rgb
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, settle, strips

MIN_CONTRAST = 4.5
TEXT_COLOURS = ("TEXT", "DIM", "ACCENT", "GOOD", "WAIT", "BAD")
SCREENS = {
    "fleet": (fleets.big_fleet(), (), ()),
    "compared": (fleets.big_fleet(), (), ("j", "space", "j", "space", "enter", "left", "left")),
    "migration": (prepared_migrations.moved_fleet(), (prepared_migrations.migration(),), ("3", "enter")),
    "preflight": (fleets.small_fleet(), (), ("m", "enter")),
}

Colour = tuple[int, int, int]
PLAIN = Style()
# names of Rich for what a terminal can show
SYSTEMS = {"256": ColorSystem.EIGHT_BIT, "standard": ColorSystem.STANDARD}


class Shown(NamedTuple):
    """Text and background as a terminal shows them: one colour of each per palette that the terminal may have."""

    text: tuple[Colour, ...]
    back: tuple[Colour, ...]

    @property
    def contrast(self) -> float:
        return min(contrast(text, back) for text, back in zip(self.text, self.back, strict=True))


def shown(style: Style, system: ColorSystem) -> Shown | None:
    """Return the colours of the escape codes that are written for a style; None without both colours."""
    codes = [int(code) for code in Strip.render_ansi(style, system).split(";") if code]
    found: dict[bool, tuple[Colour, ...]] = {}
    while codes:
        code = codes.pop(0)
        if code in (38, 48):
            if codes.pop(0) == 5:
                colours: tuple[Colour, ...] = (XTERM_256[codes.pop(0)],)
            else:
                colours = ((codes.pop(0), codes.pop(0), codes.pop(0)),)
        elif 30 <= code < 50 or 90 <= code < 110:
            number = code % 10 + (8 if code >= 90 else 0)
            assert code % 10 < 8, f"the terminal's own default: {code}"
            colours = (XTERM_16[number], VGA_16[number])
        else:
            continue
        found[40 <= code < 50 or code >= 100] = colours
    return Shown(found[False], found[True]) if len(found) == 2 else None


def themed(front: str, back: str) -> Style:
    return Style(color=front, bgcolor=back)


def test_contrast_formula_matches_wcag() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)  # the well-known #777


@pytest.mark.parametrize("name", PALETTES)
def test_text_colours_have_contrast_on_every_background(name: str) -> None:
    palette = PALETTES[name]
    backgrounds = (palette.BACKGROUND, palette.SURFACE, palette.RAISED)
    colours = [*(getattr(palette, word) for word in TEXT_COLOURS), *palette.SERIES]
    low = {
        f"{colour} on {background}": contrast(rgb(colour), rgb(background))
        for colour in colours
        for background in backgrounds
        if contrast(rgb(colour), rgb(background)) < MIN_CONTRAST
    }
    assert low == {}


def test_table_of_256_colours_is_that_of_xterm() -> None:
    assert {number: tuple(Color.from_ansi(number).get_truecolor()) for number in range(16, 256)} == XTERM_256


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", PALETTES)
def test_text_has_contrast_on_terminals_with_few_colours(name: str, system: str) -> None:
    palette = PALETTES[name]
    low = {}
    for front in [*(getattr(palette, word) for word in TEXT_COLOURS), *palette.SERIES]:
        for back in (palette.BACKGROUND, palette.SURFACE, palette.RAISED):
            pair = shown(reduced_style(system, themed(front, back)), SYSTEMS[system])
            assert pair is not None
            if pair.contrast < MIN_CONTRAST:
                low[f"{front} on {back}"] = pair
    assert low == {}


@pytest.mark.parametrize("name", PALETTES)
def test_256_colours_keep_states_series_and_backgrounds_apart(name: str) -> None:
    palette = PALETTES[name]

    def numbers(colours: Iterable[str]) -> set[int | None]:
        return {reduced("256", rgb(colour), rgb(palette.BACKGROUND))[0] for colour in colours}

    states = {palette.ACCENT, palette.GOOD, palette.WAIT, palette.BAD}
    assert len(numbers(states)) == len(states)
    assert len(numbers(palette.SERIES)) == len(palette.SERIES)
    backs = {reduced("256", None, rgb(colour))[1] for colour in (palette.BACKGROUND, palette.RAISED)}
    assert len(backs) == 2  # the selected row and the chosen tab differ from what is around them
    assert all(len(set(XTERM_256[number])) == 1 for number in backs if number is not None)  # grey, not green


def test_nearest_colour_of_each_alone_would_lose_contrast() -> None:
    palette = PALETTES["midstream"]
    pair = shown(themed(palette.DIM, palette.RAISED), ColorSystem.EIGHT_BIT)
    assert pair is not None
    assert pair.contrast < MIN_CONTRAST


@pytest.mark.long
@pytest.mark.parametrize("system", ["truecolor", *SYSTEMS])
@pytest.mark.parametrize("name", SCREENS)
async def test_drawn_text_has_contrast_in_every_theme(name: str, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, migrations, keys = SCREENS[name]
    monkeypatch.setattr(constants, "COLOR_SYSTEM", system)
    app = app_over(snapshot, PreparedActions(*migrations))
    assert app.console.color_system == system
    low: dict[str, float] = {}
    checked = 0
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: app.screen_state.migrations == migrations)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        for theme in PALETTES:
            app.use_theme(theme)
            await settle(pilot)
            for strip in strips(app):
                for segment in strip:
                    pair = shown(segment.style or PLAIN, SYSTEMS.get(system, ColorSystem.TRUECOLOR))
                    if pair is None or not any(sign.isalnum() for sign in segment.text):
                        continue
                    checked += 1
                    if pair.contrast < MIN_CONTRAST:
                        low[f"{theme}: {segment.text.strip()[:40]}"] = round(pair.contrast, 2)
    assert low == {}
    assert checked > 20 * len(PALETTES)
