"""The list of TPU slices: with slices, without, and after an error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.operations.create_target import CreatableTarget
from midstream.operations.list_slices import SliceListing
from midstream.tui.actions import Actions
from midstream.tui.screens.slices_screen import SlicesScreen
from support.tui import fleets, prepared_actions
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, check_golden, opened, screen_text, settle

FOUND = prepared_actions.SLICES


@pytest.mark.long
async def test_slices_list_shows_state_health_and_queue() -> None:
    actions = PreparedActions()
    actions.listing = FOUND
    for name, size in (("80x24", (80, 24)), ("160x45", (160, 45))):
        app = app_over(fleets.small_fleet(), actions)
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await pilot.press("4")
            await settle(pilot, lambda app=app: "READY" in screen_text(app))
            text = screen_text(app)
            for words in ("● READY", "WAITING_FOR", "PREEMPTED", "! lab/asia-east1-c: permission"):
                assert words in text
            check_golden(app, f"slices-{name}")


async def test_slices_empty_list_shows_next_action() -> None:
    actions = PreparedActions()
    async with opened("4", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "no Google Cloud project" in screen_text(app))
        actions.listing = SliceListing()
        await pilot.press("r")
        await settle(pilot, lambda: "midstream --launch CONFIG --on TARGET" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, SlicesScreen)


async def test_slices_error_keeps_last_list() -> None:
    actions = PreparedActions()
    actions.listing = FOUND
    async with opened("4", actions, size=(120, 30)) as (app, pilot):
        await settle(pilot, lambda: "READY" in screen_text(app))
        actions.listing = MidstreamError("no credentials for Google Cloud", "gcloud auth application-default login")
        await pilot.press("r")
        await settle(pilot, lambda: "✗ no credentials for Google Cloud" in screen_text(app))
        assert "gcloud auth application-default login" in screen_text(app)
        assert "● READY" in screen_text(app)


async def test_slices_copy_their_command_and_show_the_selection() -> None:
    actions = PreparedActions()
    missing = CreatableTarget("big", "lab/us-central2-b/big", "v4-64", "spot", "its price is not in the fleet file")
    actions.listing = replace(FOUND, creatable=(missing,))
    async with opened("4", actions, size=(120, 50)) as (app, pilot):
        await settle(pilot, lambda: "READY" in screen_text(app))
        await pilot.press("y")
        assert app.clipboard == "midstream --status"
        await pilot.press("Y")
        await settle(pilot, lambda: "slice lab/us-central2-b/v4-32: YAML" in screen_text(app))
        for words in ("target: pod", "status: ready", "internal: 10.0.0.3"):
            assert words in screen_text(app)
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
        await pilot.press("G", "Y", "t")
        await settle(pilot, lambda: "slice lab/us-central2-b/big: JSON" in screen_text(app))
        assert '"status": "missing"' in screen_text(app)


def test_slices_without_projects_send_no_request() -> None:
    fleet = parse_fleet("hosts:\n  here: {type: local}\n", "fleet.yaml")
    assert Actions(fleet, HostPool(fleet)).slices() == SliceListing(configured=False)
