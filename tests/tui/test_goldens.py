"""Whole screens as text, at 80x24 and at 160x45. MIDSTREAM_REWRITE_GOLDENS=1 keeps them anew."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tui import worlds
from tui.looking import SIZES, app_over, check_golden, screen_text, settle
from tui.worlds import Answers

# name -> (snapshot, migrations, keys)
SCREENS = {
    "fleet-runs": (worlds.big_fleet(), (worlds.certified(),), ()),
    "fleet-hosts": (worlds.big_fleet(), (worlds.certified(),), ("1", "j", "j")),
    "fleet-migrations": (worlds.big_fleet(), (worlds.certified(),), ("3",)),
    "fleet-empty": (worlds.snapshot([worlds.host("small")]), (), ()),
    "run-curves": (worlds.small_fleet(worlds.moved_run()), (), ("enter",)),
    "run-checkpoints": (worlds.small_fleet(worlds.moved_run()), (), ("enter", "3")),
    "run-info": (worlds.small_fleet(worlds.moved_run()), (), ("enter", "4")),
    "run-logs": (worlds.small_fleet(worlds.moved_run()), (), ("enter", "2")),
    "run-compared": (worlds.big_fleet(), (), ("j", "space", "j", "space", "enter", "left", "left")),
    "fleet-sorted": (worlds.big_fleet(), (), ("o", "o", "o", "o", "O")),
    "set-up": (worlds.snapshot(), (), ("a", "space")),
    "wizard-modes": (worlds.small_fleet(), (), ("m", "o")),
    "migration-progress": (worlds.moved_fleet(), (worlds.migration(),), ("3", "enter")),
    "wizard-plan": (worlds.small_fleet(), (), ("m",)),
    "wizard-preflight": (worlds.small_fleet(), (), ("m", "enter")),
    "wizard-confirm": (worlds.small_fleet(), (), ("m", "enter", "enter")),
    "migration-certificate": (worlds.moved_fleet(), (worlds.certified(),), ("3", "enter")),
    "migration-downtime": (worlds.moved_fleet(), (worlds.certified(),), ("3", "enter", "3")),
    "help": (worlds.small_fleet(), (), ("question_mark",)),
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Journals are shown in local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCREENS)
async def test_screen(name: str, size: str) -> None:
    snapshot, migrations, keys = SCREENS[name]
    app = app_over(snapshot, Answers(*migrations))
    async with app.run_test(size=SIZES[size]) as pilot:
        await settle(pilot, lambda: app.world.migrations == migrations)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        check_golden(app, f"{name}-{size}")


@pytest.mark.parametrize("name", SCREENS)
async def test_ascii_screens_are_ascii(name: str) -> None:
    snapshot, migrations, keys = SCREENS[name]
    app = app_over(snapshot, Answers(*migrations), ascii_only=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot, lambda: app.world.migrations == migrations)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        app.notify("a toast")
        await settle(pilot, lambda: "a toast" in screen_text(app))
        assert {sign for sign in screen_text(app) if not sign.isascii()} == set()


async def test_the_ascii_palette_is_ascii() -> None:
    app = app_over(worlds.small_fleet(), ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await settle(pilot, lambda: screen_text(app).isascii())
