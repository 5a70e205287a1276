"""Commands of every screen, and what it shows: notifications, help, palette, theme, screenshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.style import palette
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, line_with, screen_text, settle


async def test_notifications_appear_on_any_screen() -> None:
    app = app_over(fleets.small_fleet(fleets.run(), fleets.run("other")))
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("enter")
        await settle(pilot)
        failed = fleets.run("other", state="failed", running=False)
        unreachable = fleets.host("large", "stale")
        app.source.set(fleets.snapshot([fleets.host("small"), unreachable], [fleets.run(), failed]))
        await settle(pilot, lambda: "other failed on small" in screen_text(app))
        assert "large is unreachable" in screen_text(app)


async def test_migration_screen_suppresses_its_own_toasts() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter")
        await settle(pilot)
        actions.views = (prepared_migrations.certified(),)
        await settle(pilot, lambda: "✓ reference losses" in screen_text(app))
        assert "nano to large: certified" not in screen_text(app)
        await pilot.press("escape")
        actions.views = (replace(prepared_migrations.certified(), finished=True, state="completed"),)
        await settle(pilot, lambda: "nano to large: finished" in screen_text(app))


async def test_theme_change_applies_and_is_saved(tmp_path: Path) -> None:
    layout = SavedLayout.load(tmp_path / "screen.json")
    app = app_over(fleets.big_fleet())
    app.saved_layout = layout
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("T", "j", "enter")
        await settle(pilot)
        assert app.theme == "paper"
        await pilot.press("1", "q")
    assert SavedLayout.load(tmp_path / "screen.json").theme == "paper"
    assert SavedLayout.load(tmp_path / "screen.json").view == "hosts"
    (tmp_path / "screen.json").write_text("not json")
    assert SavedLayout.load(tmp_path / "screen.json").theme == "midstream"
    palette.use(palette.DEFAULT)


async def test_screenshot_is_written_to_a_file(tmp_path: Path) -> None:
    app = app_over(fleets.big_fleet())
    app.saved_layout = SavedLayout.load(tmp_path / "screen.json")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
    [picture] = tmp_path.glob("*.svg")
    assert "gpt2-medium" in picture.read_text()


async def test_help_lists_keys_of_the_screen() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("question_mark")
        await settle(pilot)
        text = screen_text(app)
        for words in (("m", "Migrate"), ("S", "Stop"), ("/", "Filter"), ("q", "Quit"), ("j Down", "Down")):
            line_with(text, *words)
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_palette_finds_command_by_name() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await settle(pilot)
        await pilot.press(*"migrate")
        await settle(pilot, lambda: "migrate the run to another target" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
