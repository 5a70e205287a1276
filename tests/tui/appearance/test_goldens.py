"""Complete screens as text, at 80x24 and 160x45.

MIDSTREAM_REWRITE_GOLDENS=1 replaces the goldens.
"""

from __future__ import annotations

import pytest

from support.tui import fleets
from support.tui.scenes import SCENES
from support.tui.screens import SIZES, app_over, check_golden, play, screen_text, settle

pytestmark = pytest.mark.usefixtures("utc")

# Scenes for pictures alone: tests of their own compare them, or read their words.
PICTURES = {"costs", "slices", "verify", "verify-question", "host-curves", "document", "launch-failed", "start-again"}
GOLDENS = [name for name in SCENES if name not in PICTURES]


@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GOLDENS)
async def test_golden_screen(name: str, size: str) -> None:
    scene = SCENES[name]
    app = app_over(scene.snapshot, scene.actions())
    async with app.run_test(size=SIZES[size]) as pilot:
        await play(pilot, scene)
        check_golden(app, f"{name}-{size}")


@pytest.mark.parametrize("name", GOLDENS)
async def test_golden_screens_in_ascii_mode_are_ascii(name: str) -> None:
    scene = SCENES[name]
    app = app_over(scene.snapshot, scene.actions(), ascii_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await play(pilot, scene)
        app.notify("a toast")
        await settle(pilot, lambda: "a toast" in screen_text(app))
        assert {sign for sign in screen_text(app) if not sign.isascii()} == set()


async def test_palette_in_ascii_mode_is_ascii() -> None:
    app = app_over(fleets.small_fleet(), ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await settle(pilot, lambda: screen_text(app).isascii())
