"""The terminal UI over a fleet with hostile text everywhere: it draws plain text only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.tui.app import MidstreamApp
from midstream.tui.widgets.log_view import LogView
from midstream.watch.machine import AcceleratorUser
from midstream.watch.snapshot import Snapshot
from midstream_core import records
from support.hostile_text import ALL, unsafe
from support.tui import fleets
from support.tui.screens import app_over, screen_text, settle, strips


def hostile_fleet() -> Snapshot:
    """Append hostile text to each string that a host chooses."""
    machine = fleets.machine("small", kind=f"H100{ALL}", users=(AcceleratorUser(7, f"eve{ALL}", f"train{ALL}"),))
    words = {name: f"{name}{ALL}" for name in ("platform", "python", "system", "kernel", "driver", "cuda", "cpu_model")}
    hostile = fleets.run(
        log=(f"begin {ALL}", "\x1b[31mred\x1b[0m", "10%\r20%", "\ttab\x9b2J"),
        curve=[{**row, f"metric{ALL}": row["train/loss"]} for row in fleets.rows(300)],
        problem=f"fence.json: {ALL}",
        fence=records.Fence(1, f"owner{ALL}"),
        lineage=fleets.lineage("nano", (1, f"small{ALL}", 2, 0)),
        checkpoints=(fleets.checkpoint(1000, root_digest=ALL),),
    )
    assert hostile.status is not None
    hostile = replace(hostile, status=replace(hostile.status, message=f"failed: {ALL}", versions={"jax": ALL}))
    return fleets.snapshot(
        [
            replace(fleets.host("small"), machine=replace(machine, hostname=f"small{ALL}", **words)),
            replace(fleets.host("gpu1", "down"), error=f"no route {ALL}"),
        ],
        [hostile, fleets.run(f"a\nb{ALL}", "small")],
    )


def drawn(app: MidstreamApp) -> str:
    """Return the text of the screen; it must have no control character and no link."""
    for strip in strips(app):
        for segment in strip:
            assert not unsafe(segment.text), ascii(segment.text)
            assert segment.style is None or (segment.style.link is None and not segment.style.meta.get("@click"))
    return screen_text(app)


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=str)
async def test_hostile_text_in_fleet_views_is_drawn_plain(size: tuple[int, int]) -> None:
    app = app_over(hostile_fleet())
    async with app.run_test(size=size) as pilot:
        text = ""
        for key in "123":
            await pilot.press(key)
            await settle(pilot)
            text += drawn(app)
        assert r"\x1b]52;" in text


async def test_hostile_text_in_run_views_is_drawn_plain() -> None:
    app = app_over(hostile_fleet(), start_run="nano")
    async with app.run_test(size=(160, 45)) as pilot:
        for key in "123456":
            await pilot.press(key)
            await settle(pilot)
            drawn(app)
        await pilot.press("2")
        await settle(pilot)
        lines = app.screen.query_one(LogView).lines
        assert not unsafe("".join(lines))
        assert lines[1] == "red"
        assert r"\x9b2J" in lines[3]


async def test_hostile_text_in_toasts_is_plain_without_markup() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        app.notify(f"message {ALL}", title=f"title {ALL}", timeout=60)
        app.screen.notify("[bold]unchanged[/bold]", timeout=60)
        await settle(pilot)
        text = drawn(app)
        assert "[bold]unchanged[/bold]" in text
        app.copy_to_clipboard(f"midstream --stop a\nrm -rf{ALL}")
        assert not unsafe(app.clipboard)
