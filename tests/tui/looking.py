"""A screen as text, and the texts that are kept of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from midstream.tui.app import MidstreamApp
from midstream.watch.snapshot import Snapshot
from tui.worlds import NOW, Answers, Values

GOLDENS = Path(__file__).parent / "goldens"
REWRITE = "MIDSTREAM_REWRITE_GOLDENS"
SIZES = {"80x24": (80, 24), "160x45": (160, 45)}


def app_over(
    snapshot: Snapshot,
    answers: Answers | None = None,
    *,
    readonly: bool = False,
    ascii_only: bool = False,
    start_run: str | None = None,
) -> MidstreamApp:
    """The app over values, with a clock that stands still."""
    return MidstreamApp(
        Values(snapshot),
        answers or Answers(),
        readonly=readonly,
        ascii_only=ascii_only,
        start_run=start_run,
        clock=lambda: NOW,
    )


def screen_text(app: MidstreamApp) -> str:
    """What stands on the screen, line by line, without colours."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


async def settle(pilot: Pilot, until: Callable[[], bool] | None = None, *, tries: int = 2000) -> None:
    """Until no work is under way and ``until`` holds."""
    app = pilot.app
    assert isinstance(app, MidstreamApp)
    for _ in range(tries):
        await pilot.pause()
        if app.background.idle and (until is None or until()):
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError(f"not within {tries} looks:\n{screen_text(app)}")


def check_golden(app: MidstreamApp, name: str) -> None:
    """The screen is the one that is kept under ``name``; with the variable set it is kept anew."""
    path = GOLDENS / f"{name}.txt"
    text = screen_text(app)
    if os.environ.get(REWRITE):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), (
        f"{path} is missing: {REWRITE}=1 python -m pytest tests/tui writes it; look at it, then commit it"
    )
    kept = path.read_text(encoding="utf-8")
    assert text == kept, f"the screen differs from {path.name}; {REWRITE}=1 keeps it anew:\n{text}"
