"""Verification of a checkpoint on the run screen: what it proves, and of which copy."""

from __future__ import annotations

import pytest
from typing_extensions import override

from midstream.errors import ConnectionLostError, DamagedError
from midstream.watch.snapshot import RunView
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, screen_text, settle


async def test_verification_without_an_answer_proves_no_damage() -> None:
    class Unreachable(PreparedActions):
        @override
        def verify(self, run: RunView, checkpoint: str) -> list[str]:
            if checkpoint == "step-1000-a001":
                raise DamagedError("its manifest cannot be read")
            raise ConnectionLostError("small does not answer", "is the host up?")

    app = app_over(fleets.small_fleet(), Unreachable(), start_run="nano")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("3", "V")
        await settle(pilot, lambda: "! not checked" in screen_text(app))
        assert "small does not answer" in screen_text(app)
        assert "damaged" not in screen_text(app)
        await pilot.press("j", "V")
        await settle(pilot, lambda: "✗ damaged" in screen_text(app))
        assert "its manifest cannot be read" in screen_text(app)


@pytest.mark.long
async def test_verification_holds_for_the_copy_that_was_hashed() -> None:
    app = app_over(fleets.small_fleet(), start_run="nano")
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("3", "V")
        await settle(pilot, lambda: "✓ verified" in screen_text(app))
        source = app.source
        assert isinstance(source, PreparedSnapshots)
        source.set(fleets.small_fleet(fleets.moved_run()))
        await settle(pilot, lambda: "large 4×cpu" in screen_text(app))
        assert "step-1200-a001" in screen_text(app)
        assert "✓ verified" not in screen_text(app), "the copy on large was not hashed"
