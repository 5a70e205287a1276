"""The wizard's table of estimates: names, rows, the target that is chosen, and what cannot be chosen."""

from __future__ import annotations

import re
from dataclasses import replace

from midstream.compare.baseline import Baseline
from midstream.compare.candidates import Candidate
from midstream.compare.comparison import ComparisonRow
from midstream.compare.estimate import Memory, Range, StepEstimate
from midstream.tui.screens.compare_screen import CompareScreen
from midstream.tui.screens.wizard import WizardScreen
from support.accelerator_types import known
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, opened, screen_text, settle

ESTIMATE = StepEstimate(
    "estimate", "v5e-16", True, True, 4, 8, None, 60.0, 16, "TPU v5 lite", 16 << 30, 1, 1, 64, 2048, 1000, 4, 2,
    Memory(8 << 30, 1, 1), 2.0, 1.6, 2.4,
)  # fmt: skip
PRESENT = Baseline("small", "small", 2, "cpu", 1.8, Range(4.0, 3.9, 4.2), 1024.0, 1000)
FIRST = ComparisonRow(Candidate("gpu2", known("h100x8"), "gpu2", 3.6), ESTIMATE, "", Range(2.0, 1.6, 2.4), 1000)
RENTED = ComparisonRow(Candidate("v5e-16", known("v5e-16"), "", 7.2), ESTIMATE, "", Range(2.0, 1.6, 2.4), 1000)
REFUSED = ComparisonRow(Candidate("large", known("v5e-1"), "large"), replace(ESTIMATE, fits=False, step_seconds=None))


async def test_target_of_the_table_is_the_wizards_target() -> None:
    actions = PreparedActions()
    actions.estimated = (PRESENT, REFUSED, RENTED, FIRST)
    app = app_over(fleets.small_fleet(), actions)

    def notes() -> str:
        return "\n".join(note.message for note in app._notifications)

    async with app.run_test(size=(140, 40)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "downtime" in screen_text(app))
        await pilot.press("a")
        await settle(pilot, lambda: "v5e-16, v5p-8" in screen_text(app))
        await pilot.press("ctrl+u", *"gpu2,v5e-16,large", "enter")
        await settle(pilot, lambda: "not measured on these" in screen_text(app))
        text = screen_text(app)
        assert ("estimates", "gpu2,v5e-16,large") in actions.calls
        assert "where the run is" in text
        rows = (r"small \(measured\) +2", "gpu2 +16", "v5e-16 +16", "large +16")
        places = [match.start() for row in rows if (match := re.search(row, text))]
        assert len(places) == len(rows)
        assert places == sorted(places), "what does not fit is last"
        assert "\u2717 no" in text
        await pilot.press("g", "m")
        await settle(pilot, lambda: "the run is on small" in notes())
        await pilot.press("down", "down", "m")
        await settle(pilot, lambda: "v5e-16 is no target" in notes())
        await pilot.press("down", "m")
        await settle(pilot, lambda: "the run does not fit large" in notes())
        assert isinstance(app.screen, CompareScreen)
        await pilot.press("g", "down", "m")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen) and "--to gpu2" in screen_text(app))
        assert [call[1].target for call in actions.calls if call[0] == "plan"][-1] == "gpu2"


async def test_closing_the_table_ends_the_compilation() -> None:
    actions = PreparedActions()
    async with opened("m", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "downtime" in screen_text(app))
        await pilot.press("a", *"v5e-16", "enter")
        await settle(pilot, lambda: isinstance(app.screen, CompareScreen))
        assert actions.cancel is not None
        assert not actions.cancel.is_set()
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        assert actions.cancel.is_set()


async def test_place_of_the_run_is_not_taken_for_another_target() -> None:
    actions = PreparedActions()
    actions.estimated = (
        ComparisonRow(Candidate("small", known("v5e-1"), "small"), ESTIMATE, "", Range(2.0, 1.6, 2.4), 1000),
    )
    async with opened("m", actions, size=(140, 40)) as (app, pilot):
        await settle(pilot, lambda: "downtime" in screen_text(app))
        await pilot.press("a")
        await settle(pilot)
        await pilot.press("ctrl+u", *"small", "enter")
        await settle(pilot, lambda: isinstance(app.screen, CompareScreen) and "16" in screen_text(app))
        planned = [call for call in actions.calls if call[0] == "plan"]
        await pilot.press("g", "m")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        assert [call for call in actions.calls if call[0] == "plan"] == planned, "large was not chosen"
        assert "the run is on small" in [note.message for note in app._notifications]
