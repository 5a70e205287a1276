"""Slices of a Cloud TPU service: create, delete."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.fleet.fleet import Fleet
from midstream.fleet.tpu_target import TpuTarget
from midstream.providers import creation, fleet_slices
from midstream.providers.provider import ErrorKind, ProviderError, Slice, SliceStatus
from midstream.providers.tpu import access as worker_access
from midstream.providers.tpu import lookup as slice_lookup
from midstream.providers.tpu import service as tpu_service
from midstream.providers.tpu.provider import TpuProvider
from simulators.google import tpu_nodes
from simulators.google.tpu_api import Fault, TpuServer, fast_polling, tpu_server
from simulators.google.tpu_nodes import QUOTA, Outcome, State

__all__ = ["fast_polling", "tpu_server"]
pytestmark = pytest.mark.usefixtures("fast_polling")
PLACE = "projects/p/locations/z"
POD = TpuTarget(
    project="p", zone="z", accelerator_type="v3-32", runtime_version="tpu-ubuntu2204-base", create=True, spot=True
)
QUEUED = TpuTarget(**{**vars(POD), "queued": True})
STATUS = grpc.StatusCode


@pytest.fixture
def google() -> TpuProvider:
    return TpuProvider()


def nothing_costs(tpu_server: TpuServer) -> bool:
    return not tpu_server.nodes and not tpu_server.queued


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
def test_slice_is_created_reused_and_deleted(tpu_server: TpuServer, google: TpuProvider, target: TpuTarget) -> None:
    messages: list[str] = []
    tpu_server.delay = 0.4  # long enough to be seen
    made = google.create("pod", target, messages.append)
    assert (made.status, made.state, made.health, len(made.workers)) == (SliceStatus.READY, "READY", "HEALTHY", 4)
    assert (made.accelerator_type, made.price_class, made.ours) == ("v3-32", "spot", True)
    assert made.path == "p/z/pod"
    assert messages[0] == f"requesting p/z/pod: v3-32, spot{', queued' if target.queued else ''}"
    assert messages[-1] == "p/z/pod is ready: 4 workers"
    node = tpu_server.nodes[f"{PLACE}/nodes/pod"]
    assert node.metadata["enable-guest-attributes"] == "TRUE"
    assert node.labels["midstream-target"] == "pod"
    if target.queued:
        request = tpu_server.queued[f"{PLACE}/queuedResources/pod"]
        assert request.queueing_policy.valid_until_duration.seconds == 3600
        assert "spot" in request
        assert any("WAITING_FOR_RESOURCES" in line for line in messages), messages
    else:
        assert node.scheduling_config.spot
    again = google.create("pod", target, messages.append)
    assert again == made, "an existing slice is not requested twice"
    assert len(tpu_server.created) == 1
    google.delete("p/z/pod", messages.append)
    assert messages[-1] == "p/z/pod is deleted"
    assert nothing_costs(tpu_server)
    assert google.find("pod", target) is None


def test_node_request_follows_fleet_file() -> None:
    words = {**vars(POD), "spot": False, "reserved": True, "network": "n", "subnetwork": "s", "service_account": "a@b"}
    node = tpu_service.node_message("Pod.1", TpuTarget(**words), "token")
    assert (node.scheduling_config.reserved, node.scheduling_config.spot) == (True, False)
    assert (node.network_config.network, node.network_config.subnetwork) == ("n", "s")
    assert node.network_config.enable_external_ips
    assert node.service_account.email == "a@b"
    assert node.labels["midstream-target"] == "pod-1", "in the form of labels"
    words |= {"accelerator_type": "v5p", "topology": "2x2x4", "reach": "iap", "os_login": "a@b"}
    node = tpu_service.node_message("pod", TpuTarget(**words), "token")
    assert node.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V5P
    assert (node.accelerator_config.topology, node.accelerator_type) == ("2x2x4", "")
    assert not node.network_config.enable_external_ips
    assert node.metadata["enable-oslogin"] == "TRUE"
    with pytest.raises(ProviderError, match="accelerator_type is a generation, not 'v9'"):
        tpu_service.node_message("pod", TpuTarget(**{**words, "accelerator_type": "v9"}), "token")


def test_reservation_is_named_and_reserved(tpu_server: TpuServer, google: TpuProvider) -> None:
    name = "ours"
    target = TpuTarget(**{**vars(POD), "spot": False, "reservation": name, "queued": True})
    assert target.price_class == "reserved"
    google.create("pod", target, print)
    (request,) = tpu_server.queued.values()
    assert request.reservation_name == "projects/p/locations/z/reservations/ours"
    assert "guaranteed" in request
    assert "spot" not in request
    found = google.find("pod", target)
    assert found is not None
    assert found.price_class == "reserved"
    google.delete(found.path, print)
    assert nothing_costs(tpu_server)


@pytest.mark.parametrize(
    ("kind", "topology", "devices"),
    [
        ("v2-8", None, 8), ("v3-32", None, 32), ("v4-8", None, 4), ("v5p-16", None, 8), ("v5litepod-16", None, 16),
        ("v6e-8", None, 8), ("v4", "2x2x2", 8), ("v3", "4x4", 32), ("v9-8", None, None), ("v4", "2by2", None),
    ],
)  # fmt: skip
def test_device_count_follows_from_accelerator_type(kind: str, topology: str | None, devices: int) -> None:
    assert TpuTarget(accelerator_type=kind, topology=topology).device_count == devices
    assert TpuTarget(accelerator_type=kind, topology=topology, worker={"devices": 1}).device_count is None


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (Outcome(), ErrorKind.STOCKOUT, "p/z has no capacity now: There is no more capacity in the zone"),
        (Outcome(message=QUOTA), ErrorKind.QUOTA, "a quota of p/z is used up"),
        (
            Outcome(13, "internal error", leaves=State.TERMINATED),
            ErrorKind.STOCKOUT,
            "was TERMINATED before it was ready",
        ),
    ],
    ids=["stockout", "quota", "left-behind"],
)
def test_failed_creation_leaves_nothing(
    tpu_server: TpuServer, google: TpuProvider, outcome: Outcome, kind: str, words: str
) -> None:
    tpu_server.outcomes.append(outcome)
    with pytest.raises(ProviderError, match="nothing costs money") as caught:
        google.create("pod", POD, lambda _: None)
    assert nothing_costs(tpu_server)
    assert caught.value.costs == ""
    if outcome.leaves is None:
        assert (caught.value.kind, words in caught.value.message) == (kind, True), caught.value


def test_failed_queued_request_reports_reason(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.outcomes.append(Outcome(message=QUOTA))
    with pytest.raises(
        ProviderError, match=r"pod was FAILED before it was ready: Quota .* what was created is deleted"
    ):
        google.create("pod", QUEUED, lambda _: None)
    assert nothing_costs(tpu_server)


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
def test_creation_timeout_or_cancellation_deletes_slice(
    tpu_server: TpuServer, google: TpuProvider, target: TpuTarget
) -> None:
    tpu_server.delay = 100000.0
    late = TpuTarget(**{**vars(target), "valid_until": "0.3s"})
    with pytest.raises(ProviderError, match=r"was not ready within 0\.3s; what was created is deleted") as caught:
        google.create("pod", late, lambda _: None)
    assert caught.value.kind == ErrorKind.TIMEOUT
    assert nothing_costs(tpu_server)
    cancel = threading.Event()

    def say(line: str) -> None:
        if "CREATING" in line or "ACCEPTED" in line:
            cancel.set()

    with pytest.raises(ProviderError, match="was cancelled; what was created is deleted, nothing costs money"):
        google.create("pod", target, say, cancel)
    assert nothing_costs(tpu_server)


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
def test_cancelled_slice_that_is_not_listed_yet_is_deleted(
    tpu_server: TpuServer, google: TpuProvider, target: TpuTarget
) -> None:
    tpu_server.delay, tpu_server.unlisted = 100000.0, 0.2
    cancel = threading.Event()

    def say(line: str) -> None:
        if ": requested" in line:
            cancel.set()

    with pytest.raises(ProviderError, match="was cancelled; what was created is deleted, nothing costs money"):
        google.create("pod", target, say, cancel)
    assert nothing_costs(tpu_server)


def test_slice_that_is_never_listed_may_cost_money(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.unlisted = 100000.0
    with pytest.raises(
        ProviderError, match="p/z/pod was requested, and is not listed; p/z/pod MAY STILL EXIST"
    ) as caught:
        google.create("pod", POD, lambda _: None)
    assert "gcloud compute tpus tpu-vm delete pod" in caught.value.costs


def test_ctrl_c_deletes_slice_in_creation(tpu_server: TpuServer, google: TpuProvider) -> None:
    def say(line: str) -> None:
        if "CREATING" in line:
            raise KeyboardInterrupt

    tpu_server.delay = 100000.0

    with pytest.raises(ProviderError, match="interrupted; what was created is deleted, nothing costs money") as caught:
        google.create("pod", POD, say)
    assert caught.value.kind == ErrorKind.CANCELLED
    assert nothing_costs(tpu_server)


def test_failed_deletion_names_slice_and_command(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.outcomes.append(Outcome(leaves=State.TERMINATED))
    tpu_server.faults.append(
        Fault("DeleteNode", STATUS.PERMISSION_DENIED, "Permission 'tpu.nodes.delete' denied on 'x'")
    )
    with pytest.raises(ProviderError, match="MAY STILL EXIST AND COST MONEY") as caught:
        google.create("pod", POD, lambda _: None)
    assert "gcloud compute tpus tpu-vm delete pod --zone=z --project=p" in caught.value.costs
    assert "tpu.nodes.delete is missing" in caught.value.costs


def test_lost_answer_creates_no_second_slice(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.faults += [Fault("CreateNode"), Fault("CreateNode", late=True), Fault("GetNode", times=3)]
    made = google.create("pod", POD, lambda _: None)
    assert made.status == SliceStatus.READY
    assert len(tpu_server.created) == 1


def test_unreachable_service_leaves_nothing(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.faults.append(Fault("CreateNode", times=99))
    with pytest.raises(ProviderError, match="planted; nothing was created, nothing costs money") as caught:
        google.create("pod", POD, lambda _: None)
    assert caught.value.kind == ErrorKind.UNAVAILABLE
    assert tpu_server.called("CreateNode") == creation.MAX_START_CALLS
    assert nothing_costs(tpu_server)


def test_slice_of_others_is_used_and_never_deleted(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.create(PLACE, "pod", tpu_v2.Node(accelerator_type="v3-8", runtime_version="r"))
    messages: list[str] = []
    made = google.create("pod", POD, messages.append)
    assert (made.ours, len(made.workers)) == (False, 1)
    tpu_server.preempt("pod")
    with pytest.raises(ProviderError, match="is PREEMPTED, and midstream did not create it"):
        google.create("pod", POD, messages.append)
    assert f"{PLACE}/nodes/pod" in tpu_server.nodes


def test_preempted_own_slice_is_replaced(tpu_server: TpuServer, google: TpuProvider) -> None:
    for says_so, target in ((True, POD), (False, QUEUED)):
        first = google.create("pod", target, lambda _: None)
        tpu_server.preempt("pod", says_so=says_so)
        preempted = google.find("pod", target)
        assert preempted is not None
        assert preempted.status == SliceStatus.PREEMPTED, "a suspended request counts where the node is READY"
        second = google.create("pod", target, lambda _: None)
        assert second.identity != first.identity
        google.delete(second.path, lambda _: None)


def test_stopped_own_slice_keeps_its_disks(tpu_server: TpuServer, google: TpuProvider) -> None:
    first = google.create("pod", POD, lambda _: None)
    tpu_server.nodes[f"{PLACE}/nodes/pod"].state = State.STOPPED
    fleet = fleet_slices.with_slices(Fleet(targets={"pod": POD}), lambda _: None)
    assert str(fleet.unavailable["pod"]).startswith("pod: p/z/pod is STOPPED (start it again")
    assert not isinstance(fleet.unavailable["pod"], fleet_slices.SliceMissingError), "its creation is not offered"
    with pytest.raises(ProviderError, match=r"is STOPPED, and a new one would replace its disks.*--delete p/z/pod"):
        google.create("pod", POD, lambda _: None)
    found = google.find("pod", POD)
    assert found is not None
    assert found.identity == first.identity


def test_slow_installation_of_a_key_is_no_failure(
    tpu_server: TpuServer, google: TpuProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    target = TpuTarget(**{**vars(POD), "identity_file": str(tmp_path / "key")})
    found, lines = google.create("pod", target, lambda _: None), list[str]()
    monkeypatch.setattr(tpu_nodes, "DELETION", 1000.0)  # seconds that an update takes
    monkeypatch.setattr(worker_access, "BOOT_TIMEOUT", 0.05)
    entries = google.grant_access("pod", target, found, lines.append, touch=True)
    assert list(entries) == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert any("p/z/pod: the service still installs the key" in line for line in lines), lines
    assert tpu_server.called("UpdateNode") == 1


@pytest.mark.usefixtures("tpu_server")
def test_flapping_state_is_not_ready(google: TpuProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(
        [
            SliceStatus.CREATING,
            SliceStatus.READY,
            SliceStatus.CREATING,
            SliceStatus.READY,
            SliceStatus.STOPPING,
            SliceStatus.READY,
            SliceStatus.READY,
        ]
    )
    real, taken = slice_lookup.find, []

    def find(*arguments: str, **words: bool) -> Slice | None:
        found = real(*arguments, **words)  # type: ignore[arg-type]
        if found is None or not found.workers:
            return found
        taken.append(next(states))
        return Slice(**{**vars(found), "status": taken[-1]})

    monkeypatch.setattr(slice_lookup, "find", find)
    assert google.create("pod", POD, lambda _: None).status == SliceStatus.READY
    assert taken[-2:] == [SliceStatus.READY, SliceStatus.READY]
    assert len(taken) == 7
