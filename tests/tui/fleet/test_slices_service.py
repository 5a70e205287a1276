"""The list of TPU slices over Google's client: list, create, delete and refusals."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
import pytest
from google.cloud import tpu_v2

from integration.tpu.test_commands import add_stopped_run, fleet_file
from midstream.errors import MidstreamError
from midstream.fleet.fleet_file import load_fleet
from midstream.fleet.tpu_target import TpuTarget
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.request import Request
from midstream.providers import fleet_slices
from midstream.tui.actions import Actions
from midstream.tui.app import MidstreamApp
from midstream.tui.base_app import RELOAD_EXIT_CODE
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.slices_screen import SlicesScreen
from midstream.tui.target_choice import TargetMissingError
from midstream.watch.watcher import take_snapshot
from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import Fault, TpuServer, fast_polling, tpu_server
from simulators.google.tpu_nodes import Outcome, State
from simulators.sshd import Lab, lab
from support.tui import fleets
from support.tui.prepared_actions import PreparedSnapshots
from support.tui.screens import screen_text, settle

__all__ = ["fast_polling", "lab", "tpu_server"]
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("fast_polling")]
SIZE = (120, 30)
NODE = "projects/lab/locations/here-a/nodes/n"


@dataclass
class SliceFleet:
    """A fleet whose target ``pod`` is a slice of one worker, and the service."""

    lab: Lab
    server: TpuServer
    pod: Slice
    hosts: list[HostPool]
    snapshots: PreparedSnapshots = field(init=False)  # of the newest app

    def app(self, *, readonly: bool = False) -> MidstreamApp:
        """Create the app over the current state, as `cli.main` does at each start."""
        file = self.lab.directory / "fleet.yaml"
        worker = f"{{devices: 1, python: {sys.executable}}}"
        words = {"create": "true", "spot": "true", "price_per_hour": "8", "worker": worker}
        text = target_text("pod", self.pod, self.lab.directory / "key", **words)
        file.write_text(f"hosts: {{}}\ntargets:\n{text}")
        fleet = fleet_slices.with_slices(load_fleet(file), lambda _: None)
        self.hosts.append(HostPool(fleet))
        run = fleets.run(host="pod-0")
        screen_state = (
            fleets.snapshot([fleets.host("pod-0")], [run]) if "pod-0" in fleet.hosts else fleets.small_fleet()
        )
        self.snapshots = PreparedSnapshots(screen_state)
        return MidstreamApp(self.snapshots, Actions(fleet, self.hosts[-1]), readonly=readonly)

    def add_slice(self, name: str, state: tpu_v2.Node.State = State.READY) -> None:
        """Create a slice of that name and state."""
        target = load_fleet(self.lab.directory / "fleet.yaml").slices["pod"]
        fleet_slices.provider_of_type(TpuTarget).create(
            "pod", type(target)(**{**vars(target), "name": name}), lambda _: None
        )
        self.server.nodes[f"projects/lab/locations/here-a/nodes/{name}"].state = state


@pytest.fixture
def slice_fleet(lab: Lab, tpu_server: TpuServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SliceFleet]:
    monkeypatch.setenv("MIDSTREAM_STATE", str(lab.directory / "state"))
    pod = Slice(lab, "n", 1)
    tpu_server.workers["n"] = pod.workers
    made = SliceFleet(lab, tpu_server, pod, [])
    yield made
    for hosts in made.hosts:
        hosts.close()


@pytest.mark.long
async def test_slices_screen_creates_lists_and_deletes_a_slice(
    slice_fleet: SliceFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = slice_fleet.app()
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)  # a pilot has no terminal to suspend
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "missing" in screen_text(app))
        await pilot.press("D")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen), "nothing to delete"
        await pilot.press("n")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        for words in ("pod does not exist", "v3-32", "8 an hour", "--delete pod"):
            assert words in screen_text(app), words
        assert slice_fleet.server.created == []
        await pilot.press(*"pod", "enter")
        await settle(pilot, lambda: app.return_value == RELOAD_EXIT_CODE)
    assert slice_fleet.server.created == [NODE]

    app = slice_fleet.app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("n")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen), "an existing slice is not created again"
        await pilot.press("D")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "nano trains on pod-0 at step 1204" in screen_text(app)
        assert "--save-first" in screen_text(app), "saving is offered"
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
        assert NODE in slice_fleet.server.nodes, "esc deletes nothing"
        await pilot.press("D", "n")
        runs = [fleets.run(host="pod-0"), fleets.run("late", host="pod-0")]
        slice_fleet.snapshots.set(fleets.snapshot([fleets.host("pod-0")], runs))
        await settle(pilot, lambda: len(app.screen_state.snapshot.runs) == 2)
        await pilot.press("enter")
        await settle(pilot, lambda: "late trains on pod-0 at step 1204" in screen_text(app))
        assert NODE in slice_fleet.server.nodes, "consent covers the runs that were shown"
        await pilot.press("n", "enter")
        await settle(pilot, lambda: app.return_value == RELOAD_EXIT_CODE)
    assert slice_fleet.server.nodes == {}


async def test_slices_show_service_states_and_delete_unlisted(slice_fleet: SliceFleet) -> None:
    app = slice_fleet.app()
    for name, state in (("early", State.CREATING), ("late", State.PREEMPTED), ("repairing", State.REPAIRING)):
        slice_fleet.add_slice(name, state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "REPAIRING" in screen_text(app))
        lines = {line.split()[0].strip("> "): line for line in screen_text(app).splitlines() if "lab/here-a" in line}
        assert {"◐ CREATING", "○ PREEMPTED", "! REPAIRING", "○ missing"} == {
            state
            for line in lines.values()
            for state in ("◐ CREATING", "○ PREEMPTED", "! REPAIRING", "○ missing")
            if state in line
        }
        slice_fleet.server.nodes["projects/lab/locations/here-a/nodes/early"].state = State.READY
        await pilot.press("r")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("j", "D", *"late", "enter")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen) and "PREEMPTED" not in screen_text(app))
        assert app.return_value is None, "no host has changed"
        assert sorted(name.rpartition("/")[2] for name in slice_fleet.server.nodes) == ["early", "repairing"]


async def test_slices_refusal_is_one_line_with_hint(slice_fleet: SliceFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = "Permission 'tpu.nodes.{0}' denied on resource 'projects/lab'"
    app = slice_fleet.app()
    slice_fleet.add_slice("n")
    fault = Fault("ListNodes", grpc.StatusCode.PERMISSION_DENIED, denied.format("list"), times=99)
    slice_fleet.server.faults += [
        fault,
        Fault("DeleteNode", grpc.StatusCode.PERMISSION_DENIED, denied.format("delete"), times=99),
    ]
    async with app.run_test(size=(160, 30)) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "tpu.nodes.list is missing on projects/lab (roles/tpu.admin" in screen_text(app))
        fault.times = 0
        await pilot.press("r")
        await settle(pilot, lambda: "● READY" in screen_text(app) and "is missing" not in screen_text(app))
        await pilot.press("D", "n", "enter")
        await settle(pilot, lambda: "tpu.nodes.delete is missing on projects/lab" in screen_text(app))
        assert "✗ lab/here-a/n cannot be deleted" in screen_text(app)
        assert "● READY" in screen_text(app), "the last list stays"
        assert NODE in slice_fleet.server.nodes
        monkeypatch.delenv("MIDSTREAM_TPU_ENDPOINT")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(slice_fleet.lab.directory / "none.json"))
        await pilot.press("r")
        await settle(pilot, lambda: "there are no Google credentials here" in screen_text(app))
        assert "gcloud auth application-default login" in screen_text(app)


async def creation(slice_fleet: SliceFleet, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create the slice in the list of slices; return the last line of the terminal before enter."""
    app = slice_fleet.app()
    terminal_text = io.StringIO()

    @contextlib.contextmanager
    def suspended() -> Iterator[None]:
        """Read the suspended screen's terminal and press enter."""
        with monkeypatch.context() as patch, contextlib.redirect_stderr(terminal_text):
            patch.setattr(sys, "stdin", io.StringIO("\n"))
            yield

    monkeypatch.setattr(app, "suspend", suspended)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "missing" in screen_text(app))
        await pilot.press("n", *"pod", "enter")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
    assert app.return_value is None
    return terminal_text.getvalue().splitlines()[-2]


async def test_slices_failed_creation_is_shown_in_terminal(
    slice_fleet: SliceFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_fleet.server.outcomes.append(Outcome())
    line = await creation(slice_fleet, monkeypatch)
    assert line.startswith(
        "midstream: pod cannot be created: lab/here-a has no capacity now: There is no more capacity"
    )
    assert "what was created is deleted, nothing costs money" in line
    assert slice_fleet.server.nodes == {}


async def test_slices_unreachable_creation_says_that_it_costs_money(
    slice_fleet: SliceFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice exists, and no worker accepts a login: nothing deletes it."""
    monkeypatch.setattr(fleet_slices, "LOGIN_TIMEOUT", 0.0)
    slice_fleet.pod.go_away()
    line = await creation(slice_fleet, monkeypatch)
    assert line.startswith("midstream: "), line
    assert "; lab/here-a/n costs money: midstream --delete pod" in line
    assert list(slice_fleet.server.nodes) == [NODE]


def test_wizard_offers_slice_only_for_possible_migration(slice_fleet: SliceFleet) -> None:
    def planned(batch: int) -> None:
        shutil.rmtree(slice_fleet.lab.directory / "gpu", ignore_errors=True)
        file = add_stopped_run(slice_fleet.lab, fleet_file(slice_fleet.lab, slice_fleet.pod, worker="{}"), batch)
        fleet = fleet_slices.with_slices(load_fleet(file), lambda _: None)
        slice_fleet.hosts.append(HostPool(fleet))
        actions = Actions(fleet, slice_fleet.hosts[-1])
        assert [target.name for target in actions.targets()] == ["gpu", "pod"]
        actions.make_plan(take_snapshot(slice_fleet.hosts[-1]), Request("r", "pod"))

    with pytest.raises(MidstreamError, match="a batch of 48 cannot be divided over 32 data-parallel devices"):
        planned(48)
    with pytest.raises(TargetMissingError, match="lab/here-a/n does not exist") as caught:
        planned(64)
    assert caught.value.missing.price.startswith("v3-32, spot: cheaper")
    slice_fleet.add_slice("n", State.CREATING)
    with pytest.raises(TargetMissingError, match="lab/here-a/n is CREATING") as caught:
        planned(64)
    assert "midstream would wait for it: v3-32" in caught.value.missing.question, "as the command line does"


async def test_slices_read_only_creates_and_deletes_nothing(slice_fleet: SliceFleet) -> None:
    slice_fleet.app()
    slice_fleet.add_slice("n")
    app = slice_fleet.app(readonly=True)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("D", "n")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen)
    assert slice_fleet.server.called("DeleteNode") == 0
