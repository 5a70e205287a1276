"""The terminal UI over a fleet of whose words none can be trusted: only plain text is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.tui.app import MidstreamApp
from midstream.tui.widgets.log_view import LogView
from midstream.watch.snapshot import AcceleratorUser, Snapshot
from midstream_engine import records
from support.hostile_text import ALL, unsafe
from tui import worlds
from tui.looking import app_over, screen_text, settle


def hostile_fleet() -> Snapshot:
    """Every word that a host chooses ends with hostile ones."""
    machine = worlds.machine("small", kind=f"H100{ALL}", users=(AcceleratorUser(7, f"eve{ALL}", f"train{ALL}"),))
    words = {name: f"{name}{ALL}" for name in ("platform", "python", "system", "kernel", "driver", "cuda", "cpu_model")}
    odd = worlds.run(
        log=(f"begin {ALL}", "\x1b[31mred\x1b[0m", "10%\r20%", "\ttab\x9b2J"),
        curve=[{**row, f"metric{ALL}": row["train/loss"]} for row in worlds.rows(300)],
        trouble=f"fence.json: {ALL}",
        fence=records.Fence(1, f"holder{ALL}"),
        lineage=worlds.lineage("nano", (1, f"small{ALL}", 2, 0)),
        checkpoints=(worlds.checkpoint(1000, root_digest=ALL),),
    )
    assert odd.status is not None
    odd = replace(odd, status=replace(odd.status, message=f"failed: {ALL}", versions={"jax": ALL}))
    return worlds.snapshot(
        [
            replace(worlds.host("small"), machine=replace(machine, hostname=f"small{ALL}", **words)),
            replace(worlds.host("gpu1", "down"), error=f"no route {ALL}"),
        ],
        [odd, worlds.run(f"a\nb{ALL}", "small")],
    )


def drawn(app: MidstreamApp) -> str:
    """All that the screen holds. No character of it is a control character, and nothing of it is a link."""
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            assert not unsafe(segment.text), ascii(segment.text)
            assert segment.style is None or (segment.style.link is None and not segment.style.meta.get("@click"))
    return screen_text(app)


@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=str)
async def test_every_view_of_the_fleet_is_plain(size: tuple[int, int]) -> None:
    app = app_over(hostile_fleet())
    async with app.run_test(size=size) as pilot:
        seen = ""
        for key in "123":
            await pilot.press(key)
            await settle(pilot)
            seen += drawn(app)
        assert r"\x1b]52;" in seen


async def test_every_view_of_a_run_is_plain() -> None:
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


async def test_messages_are_plain_and_their_markup_is_not_read() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        app.notify(f"message {ALL}", title=f"title {ALL}", timeout=60)
        app.screen.notify("[bold]as it stands[/bold]", timeout=60)
        await settle(pilot)
        text = drawn(app)
        assert "[bold]as it stands[/bold]" in text
        app.copy_to_clipboard(f"midstream --stop a\nrm -rf{ALL}")
        assert not unsafe(app.clipboard)
