"""Export of curves from the terminal UI, and the dialogs of numbers."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from midstream.tui.screens.dialogs.enter_text import EnterTextScreen
from midstream.tui.widgets.curve import CurveView
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def enter(pilot, text: str) -> None:
    """Replace the text of the dialog and press enter."""
    await settle(pilot, lambda: isinstance(pilot.app.screen, EnterTextScreen))
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")


async def test_export_of_two_runs_as_csv_has_exact_values(tmp_path: Path) -> None:
    moved = prepared_migrations.moved_fleet()
    other = replace(moved.runs[0], run_id="baseline", lineage=None)
    app = app_over(replace(moved, runs=(*moved.runs, other)), start_run="nano")
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("c", "enter")
        await settle(pilot, lambda: "── baseline" in screen_text(app))
        await pilot.press("e")
        await settle(pilot, lambda: isinstance(app.screen, EnterTextScreen))
        assert app.screen.query_one(Input).value == "nano+baseline-train-loss.svg"
        await enter(pilot, "curves.csv")
        await settle(pilot, (tmp_path / "curves.csv").exists)
    rows = list(csv.DictReader((tmp_path / "curves.csv").read_text().splitlines()))
    assert {row["run"] for row in rows} == {"nano", "baseline"}
    assert float(rows[0]["train/loss"]) == moved.runs[0].curve[0]["train/loss"]
    assert len(rows) == 2 * len(moved.runs[0].curve)


async def test_export_refuses_a_suffix_and_keeps_the_dialog(tmp_path: Path) -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), start_run="nano")
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("e")
        await enter(pilot, "curves.pdf")
        await settle(pilot, lambda: "a chart is a .csv, .svg or .png file" in screen_text(app))
        await enter(pilot, "curves.svg")
        await settle(pilot, (tmp_path / "curves.svg").exists)
        await pilot.press("e")
        await pilot.press("escape")
        await settle(pilot)
    assert [path.name for path in tmp_path.iterdir()] == ["curves.svg"]


async def test_export_of_the_curves_around_the_seal(tmp_path: Path) -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(160, 45)) as pilot:
        await settle(pilot)
        await pilot.press("3", "enter")
        await settle(pilot, lambda: "reference losses" in screen_text(app))
        app.screen.query_one("#seam").focus()
        await pilot.press("e")
        await enter(pilot, "seam.csv")
        await settle(pilot, (tmp_path / "seam.csv").exists)
    rows = list(csv.DictReader((tmp_path / "seam.csv").read_text().splitlines()))
    assert rows
    assert all(1100 < float(row["step"]) < 1300 for row in rows)


async def test_smoothing_factor_y_range_and_log_x_by_key() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), start_run="nano")
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("F")
        await enter(pilot, "2")
        await settle(pilot, lambda: "is no factor" in screen_text(app))
        await enter(pilot, "0.5")
        await pilot.press("W")
        await enter(pilot, "2:3")
        await pilot.press("X")
        curve = app.screen.query_one("#main-curve", CurveView)
        await settle(pilot, lambda: curve.style_options.log_x)
        assert curve.style_options.smoothing == 0.5
        assert curve.style_options.y_range == (2, 3)
        await settle(pilot, lambda: "log x smoothing 0.5 y 2:3" in screen_text(app))
        await pilot.press("]")  # the range belongs to the loss
        await settle(pilot, lambda: "y 2:3" not in screen_text(app))
        await pilot.press("[")
        await settle(pilot, lambda: "y 2:3" in screen_text(app))
        assert app.saved_layout.smoothing == 0.5
        assert app.saved_layout.log_x
