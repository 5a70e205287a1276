"""Slices of a Cloud TPU service: what is there, asking for one, and that nothing is left of one that did not come."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, GoogleConfig, TpuTarget
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.providers import fleet_slices, interface
from midstream.hosts.providers.google import client, create
from midstream.hosts.providers.google.tpu_provider import GoogleTpus
from midstream.hosts.providers.interface import ProviderError
from simulators.tpu_api import Fault, TpuServer
from simulators.tpu_nodes import QUOTA, Outcome, QueuedState, State, Worker

PLACE = "projects/p/locations/z"
POD = TpuTarget(
    project="p", zone="z", accelerator_type="v3-32", runtime_version="tpu-ubuntu2204-base", create=True, spot=True
)
QUEUED = TpuTarget(**{**vars(POD), "queued": True})
STATUS = grpc.StatusCode


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuServer]:
    monkeypatch.setattr(interface, "FIRST", 0.005)
    monkeypatch.setattr(interface, "LONGEST", 0.02)
    with TpuServer() as server:
        monkeypatch.setenv(client.ENDPOINT, server.endpoint)
        yield server


@pytest.fixture
def google() -> GoogleTpus:
    return GoogleTpus()


def nothing_costs(server: TpuServer) -> bool:
    return not server.nodes and not server.queued


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
def test_a_slice_is_made_used_and_deleted(server: TpuServer, google: GoogleTpus, target: TpuTarget) -> None:
    said: list[str] = []
    made = google.create("pod", target, said.append)
    assert (made.standing, made.state, made.health, len(made.workers)) == (interface.READY, "READY", "HEALTHY", 4)
    assert (made.accelerator_type, made.price_class, made.ours) == ("v3-32", "spot", True)
    assert made.place == "p/z/pod"
    assert said[0] == f"asking for p/z/pod: v3-32, spot{', queued' if target.queued else ''}"
    assert said[-1] == "p/z/pod is ready: 4 workers"
    asked = server.nodes[f"{PLACE}/nodes/pod"]
    assert asked.metadata["enable-guest-attributes"] == "TRUE"
    assert asked.labels["midstream-target"] == "pod"
    if target.queued:
        request = server.queued[f"{PLACE}/queuedResources/pod"]
        assert request.queueing_policy.valid_until_duration.seconds == 3600
        assert "spot" in request
        assert any("WAITING_FOR_RESOURCES" in line for line in said), said
    else:
        assert asked.scheduling_config.spot
    again = google.create("pod", target, said.append)
    assert again == made, "what is there is not asked for twice"
    assert len(server.created) == 1
    google.delete("p/z/pod", said.append)
    assert said[-1] == "p/z/pod is deleted"
    assert nothing_costs(server)
    assert google.find("pod", target) is None


def test_what_is_asked_for_is_what_the_fleet_file_says() -> None:
    words = {**vars(POD), "spot": False, "reserved": True, "network": "n", "subnetwork": "s", "service_account": "a@b"}
    node = create.node_message("Pod.1", TpuTarget(**words), "token")
    assert (node.scheduling_config.reserved, node.scheduling_config.spot) == (True, False)
    assert (node.network_config.network, node.network_config.subnetwork) == ("n", "s")
    assert node.network_config.enable_external_ips
    assert node.service_account.email == "a@b"
    assert node.labels["midstream-target"] == "pod-1", "as labels may be"
    words |= {"accelerator_type": "v5p", "topology": "2x2x4", "reach": "iap", "os_login": "a@b"}
    node = create.node_message("pod", TpuTarget(**words), "token")
    assert node.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V5P
    assert (node.accelerator_config.topology, node.accelerator_type) == ("2x2x4", "")
    assert not node.network_config.enable_external_ips
    assert node.metadata["enable-oslogin"] == "TRUE"
    with pytest.raises(ProviderError, match="accelerator_type is a generation, not 'v9'"):
        create.node_message("pod", TpuTarget(**{**words, "accelerator_type": "v9"}), "token")


def test_a_reservation_is_named_and_what_comes_of_it_is_reserved(server: TpuServer, google: GoogleTpus) -> None:
    name = "projects/p/reservations/ours"
    target = TpuTarget(**{**vars(POD), "spot": False, "reservation": name, "queued": True})
    assert target.price_class == "reserved"
    google.create("pod", target, print)
    (request,) = server.queued.values()
    assert request.reservation_name == name
    assert "guaranteed" in request
    assert "spot" not in request
    found = google.find("pod", target)
    assert found is not None
    assert found.price_class == "reserved"
    google.delete(found.place, print)
    assert nothing_costs(server)


@pytest.mark.parametrize(
    ("kind", "topology", "devices"),
    [
        ("v2-8", None, 8), ("v3-32", None, 32), ("v4-8", None, 4), ("v5p-16", None, 8), ("v5litepod-16", None, 16),
        ("v6e-8", None, 8), ("v4", "2x2x2", 8), ("v3", "4x4", 32), ("v9-8", None, None), ("v4", "2by2", None),
    ],
)  # fmt: skip
def test_how_many_devices_a_slice_has_follows_from_its_name(kind: str, topology: str | None, devices: int) -> None:
    assert fleet_slices.devices(TpuTarget(accelerator_type=kind, topology=topology)) == devices
    assert fleet_slices.devices(TpuTarget(accelerator_type=kind, topology=topology, worker={"devices": 1})) is None


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (Outcome(), interface.STOCKOUT, "p/z has none to give now: There is no more capacity in the zone"),
        (Outcome(message=QUOTA), interface.QUOTA, "a quota of p/z is used up"),
        (
            Outcome(13, "internal error", leaves=State.TERMINATED),
            interface.STOCKOUT,
            "was TERMINATED before it was ready",
        ),
    ],
    ids=["stockout", "quota", "left-behind"],
)
def test_a_creation_that_fails_leaves_nothing_and_says_so(
    server: TpuServer, google: GoogleTpus, outcome: Outcome, kind: str, words: str
) -> None:
    server.outcomes.append(outcome)
    with pytest.raises(ProviderError, match="nothing costs money") as caught:
        google.create("pod", POD, lambda line: None)
    assert nothing_costs(server)
    assert caught.value.costs == ""
    if outcome.leaves is None:
        assert (caught.value.kind, words in caught.value.message) == (kind, True), caught.value


def test_a_queued_request_that_fails_says_why(server: TpuServer, google: GoogleTpus) -> None:
    server.outcomes.append(Outcome(message=QUOTA))
    with pytest.raises(ProviderError, match=r"pod was FAILED before it was ready: Quota .* what was begun is deleted"):
        google.create("pod", QUEUED, lambda line: None)
    assert nothing_costs(server)


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
def test_a_creation_that_takes_too_long_or_is_cancelled_is_taken_back(
    server: TpuServer, google: GoogleTpus, target: TpuTarget
) -> None:
    server.looks = 100000
    late = TpuTarget(**{**vars(target), "valid_until": "0.3s"})
    with pytest.raises(ProviderError, match="was not ready within 0 s; what was begun is deleted") as caught:
        google.create("pod", late, lambda line: None)
    assert caught.value.kind == interface.LATE
    assert nothing_costs(server)
    cancel = threading.Event()

    def say(line: str) -> None:
        if "CREATING" in line or "WAITING" in line:
            cancel.set()

    with pytest.raises(ProviderError, match="was cancelled; what was begun is deleted, nothing costs money"):
        google.create("pod", target, say, cancel)
    assert nothing_costs(server)


def test_ctrl_c_takes_back_what_was_begun(server: TpuServer, google: GoogleTpus) -> None:
    def say(line: str) -> None:
        if "CREATING" in line:
            raise KeyboardInterrupt

    server.looks = 100000

    with pytest.raises(ProviderError, match="interrupted; what was begun is deleted, nothing costs money") as caught:
        google.create("pod", POD, say)
    assert caught.value.kind == interface.CANCELLED
    assert nothing_costs(server)


def test_what_cannot_be_deleted_is_named_with_what_deletes_it(server: TpuServer, google: GoogleTpus) -> None:
    server.outcomes.append(Outcome(leaves=State.TERMINATED))
    server.faults.append(Fault("DeleteNode", STATUS.PERMISSION_DENIED, "Permission 'tpu.nodes.delete' denied on 'x'"))
    with pytest.raises(ProviderError, match="MAY STILL BE THERE AND COST MONEY") as caught:
        google.create("pod", POD, lambda line: None)
    assert "gcloud compute tpus tpu-vm delete pod --zone=z --project=p" in caught.value.costs
    assert "tpu.nodes.delete is missing" in caught.value.costs


def test_an_answer_that_is_lost_makes_no_second_slice(server: TpuServer, google: GoogleTpus) -> None:
    server.faults += [Fault("CreateNode"), Fault("CreateNode", late=True), Fault("GetNode", times=3)]
    made = google.create("pod", POD, lambda line: None)
    assert made.standing == interface.READY
    assert len(server.created) == 1


def test_a_service_that_never_answers_leaves_nothing(server: TpuServer, google: GoogleTpus) -> None:
    server.faults.append(Fault("CreateNode", times=99))
    with pytest.raises(ProviderError, match="planted; nothing was created, nothing costs money") as caught:
        google.create("pod", POD, lambda line: None)
    assert caught.value.kind == interface.UNAVAILABLE
    assert server.called("CreateNode") == create.ASKED
    assert nothing_costs(server)


def test_a_slice_of_others_is_used_and_never_deleted(server: TpuServer, google: GoogleTpus) -> None:
    server.create(PLACE, "pod", tpu_v2.Node(accelerator_type="v3-8", runtime_version="r"))
    said: list[str] = []
    made = google.create("pod", POD, said.append)
    assert (made.ours, len(made.workers)) == (False, 1)
    server.preempt("pod")
    with pytest.raises(ProviderError, match="is PREEMPTED, and midstream did not make it"):
        google.create("pod", POD, said.append)
    assert f"{PLACE}/nodes/pod" in server.nodes


def test_one_of_ours_that_was_preempted_is_replaced(server: TpuServer, google: GoogleTpus) -> None:
    for says_so, target in ((True, POD), (False, QUEUED)):
        first = google.create("pod", target, lambda line: None)
        server.preempt("pod", says_so=says_so)
        gone = google.find("pod", target)
        assert gone is not None
        assert gone.standing == interface.PREEMPTED, "a suspended request knows it where the node does not say so"
        second = google.create("pod", target, lambda line: None)
        assert second.identity != first.identity
        google.delete(second.place, lambda line: None)


def test_a_state_that_flaps_is_not_taken_for_ready(
    server: TpuServer, google: GoogleTpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(
        [
            interface.COMING,
            interface.READY,
            interface.COMING,
            interface.READY,
            interface.GOING,
            interface.READY,
            interface.READY,
        ]
    )
    real, taken = create.nodes.find, []

    def find(*words: str) -> interface.Slice | None:
        found = real(*words)  # type: ignore[arg-type]
        if found is None or not found.workers:
            return found
        taken.append(next(looks))
        return interface.Slice(**{**vars(found), "standing": taken[-1]})

    monkeypatch.setattr(create.nodes, "find", find)
    assert google.create("pod", POD, lambda line: None).standing == interface.READY
    assert taken[-2:] == [interface.READY, interface.READY]
    assert len(taken) == 7


# ------------------------------------------------------------------------------------------------------- looking


def test_everything_in_all_projects_and_zones_is_listed_page_by_page(server: TpuServer) -> None:
    for zone in ("a", "b"):
        for index in range(3):
            server.create(f"projects/p/locations/{zone}", f"n{index}", tpu_v2.Node(accelerator_type="v4-8"))
    server.create("projects/q/locations/a", "other", tpu_v2.Node(accelerator_type="v4-8"))
    server.enqueue(
        "projects/p/locations/a",
        "waits",
        tpu_v2.QueuedResource(
            tpu={"node_spec": [{"parent": "projects/p/locations/a", "node_id": "waits", "node": {}}]}, spot={}
        ),
    )
    server.unreachable = ["projects/p/locations/c"]
    fleet = Fleet(google=GoogleConfig(["p", "q"]))
    found = fleet_slices.inventory(fleet)
    assert sorted(each.place for each in found.slices) == [
        "p/a/n0", "p/a/n1", "p/a/n2", "p/a/waits", "p/b/n0", "p/b/n1", "p/b/n2", "q/a/other",
    ]  # fmt: skip
    assert found.problems == ("projects/p/locations/c cannot be seen now",)
    waits = next(each for each in found.slices if each.name == "waits")
    assert (waits.node, waits.standing, waits.price_class) == (False, interface.COMING, "spot")
    one = Fleet(google=GoogleConfig(["p"], ["b"]), targets={"other": TpuTarget(**{**vars(POD), "project": "q"})})
    assert {each.zone for each in fleet_slices.inventory(one).slices} == {"b"}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (
            Fault("List", STATUS.PERMISSION_DENIED, "Permission 'tpu.nodes.list' denied on 'projects/p/locations/-'"),
            interface.PERMISSION,
            "tpu.nodes.list is missing on projects/p/locations/-",
        ),
        (
            Fault("List", STATUS.PERMISSION_DENIED, "Cloud TPU API has not been used in project p before"),
            interface.DISABLED,
            "gcloud services enable tpu.googleapis.com --project=p",
        ),
        (Fault("List", STATUS.UNAUTHENTICATED, "invalid credentials"), interface.CREDENTIALS, "gcloud auth"),
        (Fault("List", STATUS.NOT_FOUND, "Location not found"), interface.ABSENT, "is there such a project and zone"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_listed_is_told_with_what_mends_it(
    server: TpuServer, fault: Fault, kind: str, words: str
) -> None:
    server.faults.append(fault)
    found = fleet_slices.inventory(Fleet(google=GoogleConfig(["p"])))
    assert found.slices == ()
    assert words in found.problems[0], (kind, found.problems)


def test_a_busy_service_is_asked_again(server: TpuServer) -> None:
    server.create(PLACE, "pod", tpu_v2.Node(accelerator_type="v3-8"))
    server.faults += [
        Fault("ListNodes", STATUS.UNAVAILABLE),
        Fault("ListNodes", STATUS.RESOURCE_EXHAUSTED, "slow down"),
    ]
    found = fleet_slices.inventory(Fleet(google=GoogleConfig(["p"])))
    assert ([each.name for each in found.slices], found.problems) == (["pod"], ())


@pytest.mark.parametrize(
    ("state", "health", "queued", "standing"),
    [
        (State.READY, 1, None, interface.READY),
        (State.READY, 5, None, interface.GOING),
        (State.READY, 1, QueuedState.SUSPENDING, interface.GOING),
        (State.READY, 1, QueuedState.SUSPENDED, interface.PREEMPTED),
        (State.READY, 1, QueuedState.ACTIVE, interface.READY),
        (State.REPAIRING, 0, None, interface.GOING),
        (State.PREEMPTED, 0, None, interface.PREEMPTED),
        (State.TERMINATED, 0, None, interface.PREEMPTED),
        (State.STOPPED, 0, None, interface.PREEMPTED),
        (State.CREATING, 0, QueuedState.PROVISIONING, interface.COMING),
        (State.UNKNOWN, 0, None, interface.UNCLEAR),
    ],
    ids=str,
)
def test_what_states_come_to(state: int, health: int, queued: int | None, standing: str) -> None:
    from midstream.hosts.providers.google.nodes import from_node

    node = tpu_v2.Node(name=f"{PLACE}/nodes/pod", state=state, health=tpu_v2.Node.Health(health))
    request = None if queued is None else tpu_v2.QueuedResource(state={"state": queued})
    assert from_node(node, request).standing == standing


def test_only_a_server_of_this_machine_is_spoken_to_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("10.0.0.1:80", "tpu.example.com:80", "1.2.3.4"):
        monkeypatch.setenv(client.ENDPOINT, address)
        with pytest.raises(UsageError, match="it names a server of this machine"):
            client.open_client()


# ----------------------------------------------------------------------------------------------------- the fleet

FLEET = """
hosts: {here: {type: local}}
targets:
  pod: {type: tpu, project: p, zone: z, name: n, accelerator_type: v3-32, runtime_version: r, create: true,
        price_per_hour: 8, identity_file: KEY, worker: {python: /usr/bin/python3, devices: 1}}
"""


def test_workers_of_a_slice_become_hosts_of_the_fleet_and_of_its_text(
    server: TpuServer, tmp_path: pytest.TempPathFactory
) -> None:
    fleet = parse_fleet(FLEET.replace("KEY", f"{tmp_path}/key"), "fleet.yaml")
    said: list[str] = []
    absent = fleet_slices.found(fleet, said.append)
    assert absent.hosts_of("pod") == ()
    with pytest.raises(UsageError, match=r"pod: p/z/n is not there \(--launch and --migrate --to pod ask for it"):
        absent.target("pod")
    server.workers["n"] = [
        Worker(f"10.0.0.{index}", f"127.0.0.{index}", {"ssh-ed25519": f"AAAA{index}"}) for index in range(2, 6)
    ]
    server.create(PLACE, "n", tpu_v2.Node(accelerator_type="v3-32"))
    with pytest.raises(UsageError, match=r"p/z/n is CREATING, v3-32"):
        fleet_slices.found(fleet, said.append).target("pod")
    server._ready(f"{PLACE}/nodes/n")
    looked = fleet_slices.found(fleet, said.append, touch=False)
    assert not server.called("UpdateNode"), "a look lets no key in"
    assert not said
    wider = fleet_slices.found(fleet, said.append)
    target = wider.target("pod")
    assert target.hosts == ("pod-0", "pod-1", "pod-2", "pod-3")
    assert looked.target("pod").hosts == target.hosts
    assert parse_fleet(wider.text).hosts == wider.hosts, "its text says the same"
    host = wider.hosts["pod-1"]
    assert (host.price_per_hour, host.internal_address, host.devices, host.python) == (
        2.0, "10.0.0.3", 1, "/usr/bin/python3",
    )  # fmt: skip
    assert said == [f"making a key for TPU workers: {tmp_path}/key", said[1]]
    keys = server.nodes[f"{PLACE}/nodes/n"].metadata["ssh-keys"]
    assert keys.split(":")[1].startswith("ssh-ed25519 AAAA")
    fleet_slices.found(fleet, said.append)
    assert server.called("UpdateNode") == 1, "once is enough"


def test_a_worker_takes_the_name_of_no_other_host(server: TpuServer, tmp_path: pytest.TempPathFactory) -> None:
    text = FLEET.replace("KEY", f"{tmp_path}/key").replace("here:", "pod-0: {type: local}, here:")
    server.create(PLACE, "n", tpu_v2.Node(accelerator_type="v3-8"))
    server._ready(f"{PLACE}/nodes/n")
    server.workers["n"] = [Worker("10.0.0.1", "127.0.0.1", {"ssh-rsa": "AAAA"})]
    with pytest.raises(UsageError, match="pod-0 has the name of a worker of pod"):
        fleet_slices.found(parse_fleet(text), lambda line: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("project: p, ", ""), "has no project"),
        (("accelerator_type: v3-32, ", ""), "may be created, and does not say as what"),
        (("create: true", "create: true, spot: true, reserved: true"), "is spot and reserved"),
        (("create: true", "create: true, reservation: projects/p/reservations/r"), "names a reservation, and is not"),
        (("create: true", "create: true, reach: externel"), "did you mean external"),
        (("create: true", "create: true, valid_until: soon"), "duration 'soon' cannot be read"),
        (("devices: 1", "device: 1"), "targets.pod.worker.device is not known (did you mean devices"),
        (("zone: z", "zones: z"), "targets.pod.zones is not known (did you mean zone"),
    ],
    ids=lambda value: "",
)
def test_a_target_that_is_written_wrongly_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(FLEET.replace(*change), "fleet.yaml")
    assert words in str(caught.value)
