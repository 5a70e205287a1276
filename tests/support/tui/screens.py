"""Screens as text, and their goldens."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from midstream.tui.app import MidstreamApp
from midstream.watch.snapshot import Snapshot
from support.paths import TESTS
from support.tui.fleets import NOW, small_fleet
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.scenes import Scene

GOLDENS = TESTS / "tui" / "goldens"
REWRITE = "MIDSTREAM_REWRITE_GOLDENS"
SIZES = {"80x24": (80, 24), "160x45": (160, 45)}


def app_over(
    snapshot: Snapshot,
    answers: PreparedActions | None = None,
    *,
    readonly: bool = False,
    ascii_only: bool = False,
    start_run: str | None = None,
) -> MidstreamApp:
    """Create the app over prepared values, with a stopped clock."""
    return MidstreamApp(
        PreparedSnapshots(snapshot),
        answers or PreparedActions(),
        readonly=readonly,
        ascii_only=ascii_only,
        start_run=start_run,
        clock=lambda: NOW,
    )


def strips(app: App[Any]) -> list[Strip]:
    """Return the drawn lines of the screen; Textual has no public access to them."""
    return app.screen._compositor.render_strips()


def screen_text(app: App[Any]) -> str:
    """Return the text of the screen, line by line, without colours."""
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips(app)) + "\n"


async def settle(
    pilot: Pilot, until: Callable[[], bool] | None = None, *, tries: int = 2000, working: bool = False
) -> None:
    """Wait until no worker is running, unless ``working``, and ``until`` is true."""
    app = pilot.app
    assert isinstance(app, MidstreamApp)
    for _ in range(tries):
        await pilot.pause()
        if (working or app.background.idle) and (until is None or until()):
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError(f"not settled after {tries} polls:\n{screen_text(app)}")


@asynccontextmanager
async def opened(
    key: str, answers: PreparedActions | None = None, *, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[MidstreamApp, Pilot[int]]]:
    """Run the app over a small fleet, and open a screen by its key."""
    app = app_over(small_fleet(), answers)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        await pilot.press(key)
        await settle(pilot)
        yield app, pilot


async def play(pilot: Pilot[Any], scene: Scene) -> None:
    """Press the keys of a scene."""
    app = pilot.app
    assert isinstance(app, MidstreamApp)
    await settle(pilot, lambda: app.screen_state.migrations == scene.migrations)
    for key in scene.keys:
        if callable(key):
            key(app)
        else:
            await pilot.press(key)
        await settle(pilot)


def check_golden(app: MidstreamApp, name: str) -> None:
    """Compare the screen with the golden ``name``; with the variable set, replace the golden."""
    path = GOLDENS / f"{name}.txt"
    text = screen_text(app)
    if os.environ.get(REWRITE):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), (
        f"{path} is missing: {REWRITE}=1 python -m pytest tests/tui writes it; check it, then commit it"
    )
    golden = path.read_text(encoding="utf-8")
    assert text == golden, f"the screen differs from {path.name}; {REWRITE}=1 replaces it:\n{text}"


def line_with(text: str, *words: str) -> str:
    """Return the first line with all of the words."""
    found = [line for line in text.splitlines() if all(word in line for word in words)]
    assert found, f"no line with {words}:\n{text}"
    return found[0]
