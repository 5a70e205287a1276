"""Slices of a Cloud TPU service: what is listed, and which hosts of the fleet they are."""

from __future__ import annotations

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, GoogleConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.tpu_target import TpuTarget
from midstream.providers import fleet_slices
from midstream.providers.provider import ErrorKind, SliceStatus
from midstream.providers.tpu import client as tpu_client
from midstream.providers.tpu.lookup import from_node
from simulators.google.tpu_api import Fault, TpuServer, fast_polling, tpu_server
from simulators.google.tpu_nodes import QueuedState, State, Worker

__all__ = ["fast_polling", "tpu_server"]
pytestmark = pytest.mark.usefixtures("fast_polling")
PLACE = "projects/p/locations/z"
STATUS = grpc.StatusCode


def test_list_covers_all_projects_and_zones(tpu_server: TpuServer) -> None:
    tpu_server.delay = 1000.0
    for zone in ("a", "b"):
        for index in range(3):
            tpu_server.create(f"projects/p/locations/{zone}", f"n{index}", tpu_v2.Node(accelerator_type="v4-8"))
    tpu_server.create("projects/q/locations/a", "other", tpu_v2.Node(accelerator_type="v4-8"))
    tpu_server.enqueue(
        "projects/p/locations/a",
        "waits",
        tpu_v2.QueuedResource(
            tpu={"node_spec": [{"parent": "projects/p/locations/a", "node_id": "waits", "node": {}}]}, spot={}
        ),
    )
    tpu_server.unreachable = ["projects/p/locations/c"]
    fleet = Fleet(google=GoogleConfig(["p", "q"]))
    found = fleet_slices.list_slices(fleet)
    assert sorted(each.path for each in found.slices) == [
        "p/a/n0", "p/a/n1", "p/a/n2", "p/a/waits", "p/b/n0", "p/b/n1", "p/b/n2", "q/a/other",
    ]  # fmt: skip
    assert found.problems == ("projects/p/locations/c is unreachable now",)
    waits = next(each for each in found.slices if each.name == "waits")
    assert (waits.node, waits.status, waits.price_class) == (False, SliceStatus.CREATING, "spot")
    one = Fleet(
        google=GoogleConfig(["p"], ["b"]),
        targets={
            "other": TpuTarget(project="q", zone="z", accelerator_type="v3-32", runtime_version="tpu-ubuntu2204-base")
        },
    )
    assert {each.zone for each in fleet_slices.list_slices(one).slices} == {"b"}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (
            Fault("List", STATUS.PERMISSION_DENIED, "Permission 'tpu.nodes.list' denied on 'projects/p/locations/-'"),
            ErrorKind.PERMISSION,
            "tpu.nodes.list is missing on projects/p/locations/-",
        ),
        (
            Fault("List", STATUS.PERMISSION_DENIED, "Cloud TPU API has not been used in project p before"),
            ErrorKind.DISABLED,
            "gcloud services enable tpu.googleapis.com --project=p",
        ),
        (Fault("List", STATUS.UNAUTHENTICATED, "invalid credentials"), ErrorKind.CREDENTIALS, "gcloud auth"),
        (
            Fault("List", STATUS.NOT_FOUND, "Location not found"),
            ErrorKind.NOT_FOUND,
            "is there such a project and zone",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_list_problem_has_hint(tpu_server: TpuServer, fault: Fault, kind: str, words: str) -> None:
    tpu_server.faults.append(fault)
    found = fleet_slices.list_slices(Fleet(google=GoogleConfig(["p"])))
    assert found.slices == ()
    assert words in found.problems[0], (kind, found.problems)


def test_busy_service_is_retried(tpu_server: TpuServer) -> None:
    tpu_server.create(PLACE, "pod", tpu_v2.Node(accelerator_type="v3-8"))
    tpu_server.faults += [
        Fault("ListNodes", STATUS.UNAVAILABLE),
        Fault("ListNodes", STATUS.RESOURCE_EXHAUSTED, "slow down"),
    ]
    found = fleet_slices.list_slices(Fleet(google=GoogleConfig(["p"])))
    assert ([each.name for each in found.slices], found.problems) == (["pod"], ())


@pytest.mark.parametrize(
    ("state", "health", "queued", "status"),
    [
        (State.READY, 1, None, SliceStatus.READY),
        (State.READY, 5, None, SliceStatus.STOPPING),
        (State.READY, 1, QueuedState.SUSPENDING, SliceStatus.STOPPING),
        (State.READY, 1, QueuedState.SUSPENDED, SliceStatus.PREEMPTED),
        (State.READY, 1, QueuedState.ACTIVE, SliceStatus.READY),
        (State.REPAIRING, 0, None, SliceStatus.STOPPING),
        (State.PREEMPTED, 0, None, SliceStatus.PREEMPTED),
        (State.TERMINATED, 0, None, SliceStatus.PREEMPTED),
        (State.STOPPED, 0, None, SliceStatus.PREEMPTED),
        (State.CREATING, 0, QueuedState.PROVISIONING, SliceStatus.CREATING),
        (State.UNKNOWN, 0, None, SliceStatus.UNKNOWN),
    ],
    ids=str,
)
def test_status_follows_from_node_state(state: int, health: int, queued: int | None, status: str) -> None:
    node = tpu_v2.Node(name=f"{PLACE}/nodes/pod", state=state, health=tpu_v2.Node.Health(health))
    request = None if queued is None else tpu_v2.QueuedResource(state={"state": queued})
    assert from_node(node, request).status == status


def test_unencrypted_endpoint_must_be_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("10.0.0.1:80", "tpu.example.com:80", "1.2.3.4"):
        monkeypatch.setenv(tpu_client.ENDPOINT, address)
        with pytest.raises(UsageError, match="it names a test server on this machine"):
            tpu_client.open_client()


# ----------------------------------------------------------------------------------------------------- the fleet

FLEET = """
hosts: {here: {type: local}}
targets:
  pod: {type: tpu, project: p, zone: z, name: n, accelerator_type: v3-32, runtime_version: r, create: true,
        price_per_hour: 8, identity_file: KEY, worker: {python: /usr/bin/python3, devices: 1}}
"""


def test_slice_workers_become_fleet_hosts(tpu_server: TpuServer, tmp_path: pytest.TempPathFactory) -> None:
    fleet = parse_fleet(FLEET.replace("KEY", f"{tmp_path}/key"), "fleet.yaml")
    messages: list[str] = []
    absent = fleet_slices.with_slices(fleet, messages.append)
    assert absent.hosts_of("pod") == ()
    with pytest.raises(UsageError, match=r"pod: p/z/n does not exist \(--launch and --migrate --to pod create it"):
        absent.target("pod")
    tpu_server.workers["n"] = [
        Worker(f"10.0.0.{index}", f"127.0.0.{index}", {"ssh-ed25519": f"AAAA{index}"}) for index in range(2, 6)
    ]
    tpu_server.delay = 1000.0
    tpu_server.create(PLACE, "n", tpu_v2.Node(accelerator_type="v3-32"))
    with pytest.raises(UsageError, match=r"p/z/n is CREATING, v3-32"):
        fleet_slices.with_slices(fleet, messages.append).target("pod")
    tpu_server.make_ready(f"{PLACE}/nodes/n")
    looked = fleet_slices.with_slices(fleet, messages.append, touch=False)
    assert not tpu_server.called("UpdateNode"), "without touch=True no key is installed"
    assert not messages
    wider = fleet_slices.with_slices(fleet, messages.append)
    target = wider.target("pod")
    assert target.hosts == ("pod-0", "pod-1", "pod-2", "pod-3")
    assert looked.target("pod").hosts == target.hosts
    assert parse_fleet(wider.text).hosts == wider.hosts, "its text has the same hosts"
    host = wider.hosts["pod-1"]
    assert (host.price_per_hour, host.internal_address, host.devices, host.python) == (
        2.0, "10.0.0.3", 1, "/usr/bin/python3",
    )  # fmt: skip
    assert messages == [f"creating a key for TPU workers: {tmp_path}/key", messages[1]]
    keys = tpu_server.nodes[f"{PLACE}/nodes/n"].metadata["ssh-keys"]
    assert keys.split(":")[1].startswith("ssh-ed25519 AAAA")
    fleet_slices.with_slices(fleet, messages.append)
    assert tpu_server.called("UpdateNode") == 1, "once is enough"


def test_worker_name_must_not_match_other_host(tpu_server: TpuServer, tmp_path: pytest.TempPathFactory) -> None:
    text = FLEET.replace("KEY", f"{tmp_path}/key").replace("here:", "pod-0: {type: local}, here:")
    tpu_server.create(PLACE, "n", tpu_v2.Node(accelerator_type="v3-8"))
    tpu_server.make_ready(f"{PLACE}/nodes/n")
    tpu_server.workers["n"] = [Worker("10.0.0.1", "127.0.0.1", {"ssh-rsa": "AAAA"})]
    with pytest.raises(UsageError, match="pod-0 has the name of a worker of pod"):
        fleet_slices.with_slices(parse_fleet(text), lambda _: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("project: p, ", ""), "has no project"),
        (("accelerator_type: v3-32, ", ""), "has create: true and lacks accelerator_type"),
        (("create: true", "create: true, spot: true, reserved: true"), "is spot and reserved"),
        (("create: true", "create: true, reservation: projects/p/reservations/r"), "names a reservation, and is not"),
        (("create: true", "create: true, reach: externel"), "did you mean external"),
        (("create: true", "create: true, valid_until: soon"), "duration 'soon' is malformed"),
        (("devices: 1", "device: 1"), "targets.pod.worker.device is unknown (did you mean devices"),
        (("zone: z", "zones: z"), "targets.pod.zones is unknown (did you mean zone"),
    ],
    ids=lambda _: "",
)
def test_invalid_tpu_target_is_refused(change: tuple[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(FLEET.replace(*change), "fleet.yaml")
    assert words in str(caught.value)
