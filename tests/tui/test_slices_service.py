"""The list of TPU slices over Google's own client: what the service tells, what is made, deleted and refused."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from google.cloud import tpu_v2

from integration.test_tpu_commands import fleet_file, waiting_run
from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import fleet_slices, interface
from midstream.migrate.model import Request
from midstream.tui.actions import FleetActions, NotMade
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.add_hosts import RELOAD
from midstream.tui.screens.slices.slices_screen import SlicesScreen
from midstream.watch.watcher import look_once
from simulators.slice import Slice, target_text
from simulators.sshd import Lab, lab
from simulators.tpu_api import Fault, TpuServer, tpu_server
from simulators.tpu_nodes import Outcome, State
from tui import worlds
from tui.looking import screen_text, settle
from tui.worlds import Values

__all__ = ["lab", "tpu_server"]
pytestmark = pytest.mark.system
SIZE = (120, 30)
NODE = "projects/lab/locations/here-a/nodes/n"


@dataclass
class Place:
    """A fleet whose target ``pod`` is a slice of one worker, and the service that has it or not."""

    lab: Lab
    server: TpuServer
    pod: Slice
    hosts: list[Hosts]

    def app(self, *, readonly: bool = False) -> MidstreamApp:
        """The app over what is there now: `cli.main` does the same when it begins anew."""
        file = self.lab.directory / "fleet.yaml"
        worker = f"{{devices: 1, python: {sys.executable}}}"
        words = {"create": "true", "spot": "true", "price_per_hour": "8", "worker": worker}
        text = target_text("pod", self.pod, self.lab.directory / "key", **words)
        file.write_text(f"hosts: {{}}\ntargets:\n{text}")
        fleet = fleet_slices.found(load_fleet(file), lambda line: None)
        self.hosts.append(Hosts(fleet))
        run = worlds.run(host="pod-0")
        world = worlds.snapshot([worlds.host("pod-0")], [run]) if "pod-0" in fleet.hosts else worlds.small_fleet()
        return MidstreamApp(Values(world), FleetActions(fleet, self.hosts[-1]), readonly=readonly)

    def has(self, name: str, state: tpu_v2.Node.State = State.READY) -> None:
        """A slice of that name, with a state of its own."""
        target = load_fleet(self.lab.directory / "fleet.yaml").targets["pod"]
        fleet_slices.google().create("pod", type(target)(**{**vars(target), "name": name}), lambda line: None)
        self.server.nodes[f"projects/lab/locations/here-a/nodes/{name}"].state = state


@pytest.fixture
def place(lab: Lab, tpu_server: TpuServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(interface, "FIRST", 0.01)
    monkeypatch.setattr(interface, "LONGEST", 0.1)
    monkeypatch.setenv("MIDSTREAM_STATE", str(lab.directory / "state"))
    pod = Slice(lab, "n", 1)
    tpu_server.workers["n"] = pod.workers
    made = Place(lab, tpu_server, pod, [])
    yield made
    for hosts in made.hosts:
        hosts.close()


async def test_a_slice_is_made_listed_and_deleted_from_the_screen(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = place.app()
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)  # a pilot has no terminal to give away
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "not there" in screen_text(app))
        await pilot.press("D")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen), "there is nothing to delete"
        await pilot.press("n")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "v3-32, spot: cheaper" in screen_text(app)
        assert place.server.created == []
        await pilot.press(*"pod", "enter")
        await settle(pilot, lambda: app.return_value == RELOAD)
    assert place.server.created == [NODE]

    app = place.app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("n")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen), "what is there is not made again"
        await pilot.press("D")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "nano (step 1,204) trains there now" in screen_text(app)
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
        assert NODE in place.server.nodes, "esc deletes nothing"
        await pilot.press("D", "n", "enter")
        await settle(pilot, lambda: app.return_value == RELOAD)
    assert place.server.nodes == {}


async def test_states_are_the_services_and_one_that_nobody_named_is_deleted_too(place: Place) -> None:
    app = place.app()
    for name, state in (("early", State.CREATING), ("late", State.PREEMPTED), ("mending", State.REPAIRING)):
        place.has(name, state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "REPAIRING" in screen_text(app))
        lines = {line.split()[0].strip("> "): line for line in screen_text(app).splitlines() if "lab/here-a" in line}
        assert {"◐ CREATING", "○ PREEMPTED", "! REPAIRING", "○ not there"} == {
            state
            for line in lines.values()
            for state in ("◐ CREATING", "○ PREEMPTED", "! REPAIRING", "○ not there")
            if state in line
        }
        place.server.nodes["projects/lab/locations/here-a/nodes/early"].state = State.READY
        await pilot.press("r")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("j", "D", *"late", "enter")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen) and "PREEMPTED" not in screen_text(app))
        assert app.return_value is None, "no host has changed"
        assert sorted(name.rpartition("/")[2] for name in place.server.nodes) == ["early", "mending"]


async def test_a_refusal_is_one_line_with_what_mends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = "Permission 'tpu.nodes.{0}' denied on resource 'projects/lab'"
    app = place.app()
    place.has("n")
    fault = Fault("ListNodes", grpc.StatusCode.PERMISSION_DENIED, denied.format("list"), times=99)
    place.server.faults += [
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
        assert "● READY" in screen_text(app), "what is known stays"
        assert NODE in place.server.nodes
        monkeypatch.delenv("MIDSTREAM_TPU_ENDPOINT")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(place.lab.directory / "none.json"))
        await pilot.press("r")
        await settle(pilot, lambda: "there are no Google credentials here" in screen_text(app))
        assert "gcloud auth application-default login" in screen_text(app)


async def test_a_creation_that_fails_is_said_where_it_was_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.server.outcomes.append(Outcome())
    app = place.app()
    said = io.StringIO()

    @contextlib.contextmanager
    def suspended() -> Iterator[None]:
        """The terminal that the screen has left: somebody reads, and presses enter."""
        with monkeypatch.context() as patch, contextlib.redirect_stderr(said):
            patch.setattr(sys, "stdin", io.StringIO("\n"))
            yield

    monkeypatch.setattr(app, "suspend", suspended)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "not there" in screen_text(app))
        await pilot.press("n", *"pod", "enter")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
    line = said.getvalue().splitlines()[-2]
    assert line.startswith(
        "midstream: pod cannot be created: lab/here-a has none to give now: There is no more capacity"
    )
    assert "what was begun is deleted, nothing costs money" in line
    assert app.return_value is None
    assert place.server.nodes == {}


def test_the_wizard_offers_a_slice_only_for_a_move_that_would_not_be_refused(place: Place) -> None:
    def planned(batch: int) -> None:
        shutil.rmtree(place.lab.directory / "gpu", ignore_errors=True)
        file = waiting_run(place.lab, fleet_file(place.lab, place.pod, worker="{}"), batch)
        fleet = fleet_slices.found(load_fleet(file), lambda line: None)
        place.hosts.append(Hosts(fleet))
        actions = FleetActions(fleet, place.hosts[-1])
        assert [target.name for target in actions.targets()] == ["gpu", "pod"]
        actions.make_plan(look_once(fleet, place.hosts[-1]), Request("r", "pod"))

    with pytest.raises(MidstreamError, match="a batch of 48 cannot be divided over 32 data-parallel devices"):
        planned(48)
    with pytest.raises(NotMade, match="lab/here-a/n is not there") as caught:
        planned(64)
    assert caught.value.price.startswith("v3-32, spot: cheaper")
    place.has("n", State.CREATING)
    with pytest.raises(UsageError, match="lab/here-a/n is CREATING"):
        planned(64)


async def test_a_look_alone_makes_and_deletes_nothing(place: Place) -> None:
    place.app()
    place.has("n")
    app = place.app(readonly=True)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await settle(pilot, lambda: "● READY" in screen_text(app))
        await pilot.press("D", "n")
        await settle(pilot)
        assert isinstance(app.screen, SlicesScreen)
    assert place.server.called("DeleteNode") == 0
