"""The list of TPU slices: what the provider tells, nothing to tell, and errors that leave what was known."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import interface
from midstream.hosts.providers.interface import Slice, Worker
from midstream.tui.actions import FleetActions, Slices
from midstream.tui.screens.slices.slices_screen import SlicesScreen
from tui import worlds
from tui.looking import app_over, check_golden, screen_text, settle
from tui.worlds import NOW, Answers

WORKERS = tuple(Worker(f"10.0.0.{number}") for number in range(4))
FOUND = Slices(
    (
        (
            Slice(
                "lab", "us-central2-b", "v4-32", interface.READY, "READY", "HEALTHY", "v4-32", "2x2x4", "tpu-vm-base",
                "spot", workers=WORKERS, created=NOW - 7200,
            ),
            "pod",
        ),
        (
            Slice(
                "lab", "europe-west4-a", "wanted", interface.COMING, "WAITING_FOR_RESOURCES", accelerator_type="v5p-8",
                price_class="on demand", queued="WAITING_FOR_RESOURCES", node=False, created=NOW - 300,
                why="no capacity at the moment",
            ),
            "",
        ),
        (Slice("lab", "us-central2-b", "gone", interface.PREEMPTED, "PREEMPTED", "UNHEALTHY_MAINTENANCE", "v4-8"), ""),
    ),
    ("lab/asia-east1-c: permission tpu.nodes.list is missing",),
)  # fmt: skip


async def test_slices_are_listed_with_state_health_and_queue() -> None:
    answers = Answers()
    answers.told = FOUND
    for name, size in (("80x24", (80, 24)), ("160x45", (160, 45))):
        app = app_over(worlds.small_fleet(), answers)
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await pilot.press("4")
            await settle(pilot, lambda app=app: "READY" in screen_text(app))
            text = screen_text(app)
            for words in ("● READY", "WAITING_FOR", "PREEMPTED", "! lab/asia-east1-c: permission"):
                assert words in text
            check_golden(app, f"slices-{name}")


async def test_no_project_and_no_slice_say_what_to_do_next() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("4")
        await settle(pilot, lambda: "names no Google Cloud project" in screen_text(app))
        answers.told = Slices()
        await pilot.press("r")
        await settle(pilot, lambda: "midstream --launch CONFIG --on TARGET" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, SlicesScreen)


async def test_an_error_is_said_and_what_was_known_stays() -> None:
    answers = Answers()
    answers.told = FOUND
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("4")
        await settle(pilot, lambda: "READY" in screen_text(app))
        answers.told = MidstreamError("no credentials for Google Cloud", "gcloud auth application-default login")
        await pilot.press("r")
        await settle(pilot, lambda: "✗ no credentials for Google Cloud" in screen_text(app))
        assert "gcloud auth application-default login" in screen_text(app)
        assert "● READY" in screen_text(app)


def test_without_projects_nobody_is_asked() -> None:
    fleet = parse_fleet("hosts:\n  here: {type: local}\n", "fleet.yaml")
    assert FleetActions(fleet, Hosts(fleet)).slices() == Slices(asked=False)
