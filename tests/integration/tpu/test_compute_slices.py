"""Slices of Compute Engine, from a simulated service: create, list, reach, delete."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.gce_target import ComputeTarget
from midstream.providers import fleet_slices
from midstream.providers.gce.provider import ComputeProvider
from midstream.providers.provider import ErrorKind, ProviderError, SliceStatus
from simulators.google.compute_api import ComputeServer, Fault, compute_server
from simulators.google.tpu_api import fast_polling

__all__ = ["compute_server", "fast_polling"]
pytestmark = pytest.mark.usefixtures("fast_polling")


@pytest.fixture
def compute() -> ComputeProvider:
    return ComputeProvider()


@pytest.fixture
def key(tmp_path: Path) -> str:
    return f"{tmp_path}/key"


def target_of(key: str, **words: Any) -> ComputeTarget:
    common = {"project": "proj", "zone": "us-x1-a", "machine_type": "tpu7x-standard-4t", "create": True}
    return ComputeTarget(**{**common, "identity_file": key, **words})


SPOT: dict[str, Any] = {"spot": True}
FLEX: dict[str, Any] = {"flex_start": True, "run_duration": "4h"}
RESERVED: dict[str, Any] = {"reservation": "other/ours"}


@pytest.mark.parametrize(
    ("words", "price", "model", "affinity"),
    [
        ({}, "on demand", "STANDARD", {"consumeReservationType": "NO_RESERVATION"}),
        (SPOT, "spot", "SPOT", {"consumeReservationType": "NO_RESERVATION"}),
        (FLEX, "flex-start", "FLEX_START", {"consumeReservationType": "NO_RESERVATION"}),
        (
            RESERVED, "reserved", "STANDARD",
            {"consumeReservationType": "SPECIFIC_RESERVATION", "key": "compute.googleapis.com/reservation-name",
             "values": ["projects/other/reservations/ours"]},
        ),
        ({**RESERVED, "calendar": True}, "reserved", "RESERVATION_BOUND", None),
    ],
    ids=["on-demand", "spot", "flex-start", "reserved", "calendar"],
)  # fmt: skip
def test_machine_is_requested_in_its_price_class(
    compute_server: ComputeServer, compute: ComputeProvider, key: str, words: Any, price: str, model: str, affinity: Any
) -> None:
    target, lines = target_of(key, **words), []
    made = compute.create("pod", target, lines.append)
    assert (made.status, made.state, len(made.workers), made.price_class) == (SliceStatus.READY, "RUNNING", 1, price)
    assert f"requesting proj/us-x1-a/pod: tpu7x-standard-4t, {price}" in lines
    body = compute_server.instance("pod")
    assert body["scheduling"]["provisioningModel"] == model
    assert affinity is None or body["reservationAffinity"] == affinity
    if price == "flex-start":
        assert body["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
        assert body["scheduling"]["instanceTerminationAction"] == "DELETE"
        assert body["params"]["requestValidForDuration"] == {"seconds": "3600"}
    assert body["labels"]["midstream-target"] == "pod"
    again = compute.create("pod", target, lines.append)
    assert again == made, "an existing slice is not requested twice"
    compute.delete("proj/us-x1-a/pod", lines.append)
    assert compute_server.names() == []
    assert len(compute_server.created) == 1


def test_group_has_policy_template_and_machines(
    compute_server: ComputeServer, compute: ComputeProvider, key: str
) -> None:
    target = target_of(key, topology="2x2x2", **FLEX)
    made = compute.create("pod", target, lambda _: None)
    assert (made.status, len(made.workers), made.topology, made.price_class) == (
        SliceStatus.READY, 2, "2x2x2", "flex-start",
    )  # fmt: skip
    assert compute_server.names() == sorted(
        [
            "instanceGroupManagers/pod",
            "instanceTemplates/pod",
            "resourcePolicies/pod",
            *(f"instances/{name}" for name in made.machines),
        ]
    )
    policy = next(value for key, value in compute_server.resources.items() if "resourcePolicies" in key)
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"}
    group = next(value for key, value in compute_server.resources.items() if "instanceGroupManagers" in key)
    assert (group["targetSize"], group["targetSizePolicy"]) == (2, {"mode": "BULK"})
    assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    assert target.device_count == 16
    compute_server.preempt(made.machines[1])
    found = compute.find("pod", target)
    assert found is not None
    assert (found.status, found.state) == (SliceStatus.PREEMPTED, "TERMINATED")
    second = compute.create("pod", target, lambda _: None)
    assert second.identity != made.identity, "a preempted slice of ours is replaced"
    compute.delete(second.path, lambda _: None)
    assert compute_server.names() == []


@pytest.mark.parametrize("topology", [None, "2x2x2"], ids=["machine", "group"])
@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "rateLimitExceeded"), (500, "internalError"), (401, "authError"), (503, "backendError")],
    ids=["rate", "internal", "unauthenticated", "unavailable"],
)
def test_failed_look_keeps_creation(
    compute_server: ComputeServer, compute: ComputeProvider, key: str, topology: str | None, status: int, reason: str
) -> None:
    faults = [Fault("GET (instances|instanceGroupManagers|operations)", status, reason, times=6)]

    def say(line: str) -> None:
        if "pod: " in line and not compute_server.faults:
            compute_server.faults += faults

    made = compute.create("pod", target_of(key, topology=topology), say)
    assert made.status == SliceStatus.READY
    assert faults[0].times == 0
    assert not any(call.startswith("DELETE") for call in compute_server.calls)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", ErrorKind.STOCKOUT, "has no capacity now: planted"),
        ("QUOTA_EXCEEDED", ErrorKind.QUOTA, "a quota of proj/us-x1-a is used up: planted"),
        ("UNSUPPORTED_OPERATION", ErrorKind.INVALID, "planted"),
    ],
)
def test_operation_error_ends_creation_and_leaves_nothing(
    compute_server: ComputeServer, compute: ComputeProvider, key: str, code: str, kind: str, words: str
) -> None:
    compute_server.errors.append((code, "planted"))
    with pytest.raises(ProviderError, match="nothing costs money") as caught:
        compute.create("pod", target_of(key), lambda _: None)
    assert (caught.value.kind, words in caught.value.message) == (kind, True), caught.value
    assert compute_server.names() == []


@pytest.mark.parametrize("collection", ["resourcePolicies", "instanceTemplates", "instanceGroupManagers"])
def test_refused_part_of_group_leaves_nothing(
    compute_server: ComputeServer, compute: ComputeProvider, key: str, collection: str
) -> None:
    compute_server.faults.append(
        Fault(f"POST {collection}", 403, "forbidden", "Required 'compute.x.create' permission for 'projects/proj/y'")
    )
    with pytest.raises(ProviderError, match=r"compute\.x\.create is missing on projects/proj/y") as caught:
        compute.create("pod", target_of(key, topology="2x2x2"), lambda _: None)
    assert caught.value.costs == ""
    assert compute_server.names() == []


def test_killed_creation_is_listed_and_removed(
    compute_server: ComputeServer, compute: ComputeProvider, key: str
) -> None:
    class KilledError(BaseException):
        pass

    def say(line: str) -> None:
        if "trying again" in line:
            raise KilledError  # as by a signal: nothing can be undone

    compute_server.faults.append(Fault("POST instanceGroupManagers", times=9))
    target = target_of(key, topology="2x2x2")
    with pytest.raises(KilledError):
        compute.create("pod", target, say)
    assert compute_server.names() == ["instanceTemplates/pod", "resourcePolicies/pod"]
    fleet = Fleet(targets={"pod": target})
    (left,) = fleet_slices.list_slices(fleet).slices
    assert (left.state, left.status, left.why) == (
        "INCOMPLETE",
        SliceStatus.FAILED,
        "policy and template without a group",
    )
    fleet_slices.delete(fleet, left.path, lambda _: None)
    assert compute_server.names() == []


def test_names_of_others_are_not_touched(compute_server: ComputeServer, compute: ComputeProvider, key: str) -> None:
    policy = {"name": "pod", "description": "of a colleague"}
    compute_server.resources["proj/regions/us-x1/resourcePolicies/pod"] = policy
    with pytest.raises(ProviderError, match="already exists; nothing was created, nothing costs money"):
        compute.create("pod", target_of(key, topology="2x2x2"), lambda _: None)
    assert compute_server.names() == ["resourcePolicies/pod"]


def test_cancelled_creation_leaves_nothing(compute_server: ComputeServer, compute: ComputeProvider, key: str) -> None:
    cancel = threading.Event()
    looks = 0

    def clock() -> float:
        """Stand still while a machine is provisioned, until the creation is cancelled."""
        nonlocal looks
        provisioned = any(each.get("status") == "PROVISIONING" for each in compute_server.resources.values())
        looks += cancel.is_set() or not provisioned
        return looks

    compute_server.clock, compute_server.delay = clock, 1.0

    def say(line: str) -> None:
        if "CREATING" in line or "PROVISIONING" in line:
            cancel.set()

    for topology in (None, "2x2x2"):
        cancel.clear()
        with pytest.raises(ProviderError, match="was cancelled; what was created is deleted, nothing costs money"):
            compute.create("pod", target_of(key, topology=topology), say, cancel)
        assert compute_server.names() == []


@pytest.mark.parametrize("topology", [None, "2x2x2"], ids=["machine", "group"])
def test_stopped_machine_of_full_price_keeps_its_disk(
    compute_server: ComputeServer, compute: ComputeProvider, key: str, topology: str | None
) -> None:
    full, spot = target_of(key, topology=topology), target_of(key, topology=topology, spot=True)
    for target, words in ((full, "is TERMINATED, and a new one would replace its disks"), (spot, "")):
        first = compute.create("pod", target, lambda _: None)
        compute_server.preempt(first.machines[0])
        if words:
            with pytest.raises(ProviderError, match=words):
                compute.create("pod", target, lambda _: None)
        else:
            assert compute.create("pod", target, lambda _: None).identity != first.identity
        compute.delete(first.path, lambda _: None)


def test_group_that_is_not_listed_yet_is_waited_for(
    compute_server: ComputeServer, compute: ComputeProvider, key: str
) -> None:
    compute_server.delay = 0.3  # seconds that its operation takes
    compute_server.faults.append(Fault("GET instanceGroupManagers", 404, "notFound", "not found", times=4))
    made = compute.create("pod", target_of(key, topology="2x2x2"), lambda _: None)
    assert made.status == SliceStatus.READY
    assert compute_server.faults[0].times == 0
    assert len(compute_server.created) == len(set(compute_server.created))


def test_group_without_capacity_waits_and_says_why(
    compute_server: ComputeServer, compute: ComputeProvider, key: str
) -> None:
    compute_server.errors.append(("ZONE_RESOURCE_POOL_EXHAUSTED", "no TPUs"))
    lines: list[str] = []
    made = compute.create("pod", target_of(key, topology="2x2x2"), lines.append)
    assert made.status == SliceStatus.READY
    assert any("ZONE_RESOURCE_POOL_EXHAUSTED: no TPUs" in line for line in lines), lines


# -------------------------------------------------------------------------------------------------------- reaching


def fleet_of(key: str, **words: Any) -> Fleet:
    common = {
        "type": "gce",
        "project": "proj",
        "zone": "us-x1-a",
        "machine_type": "tpu7x-standard-4t",
        "identity_file": key,
    }
    return parse_fleet(json.dumps({"targets": {"pod": {**common, **words}}}))


def test_machines_become_hosts_with_pinned_keys(
    compute_server: ComputeServer, compute: ComputeProvider, key: str
) -> None:
    fleet = fleet_of(key, topology="2x2x2", create=True, user="me")
    made = compute.create("pod", fleet.targets["pod"], lambda _: None)  # type: ignore[arg-type]
    for index, machine in enumerate(made.machines):
        compute_server.attributes[machine] = {"ssh-ed25519": f"AAAA{index}"}
    found = fleet_slices.with_slices(fleet, lambda _: None)
    assert found.hosts_of("pod") == ("pod-0", "pod-1")
    config = Path(found.hosts["pod-0"].ssh_config)  # type: ignore[attr-defined]
    assert (config.parent / "known_hosts").read_text().count(" ssh-ed25519 AAAA") == 2
    keys = [
        item["value"]
        for item in compute_server.instance(made.machines[0])["metadata"]["items"]
        if item["key"] == "ssh-keys"
    ]
    assert keys[0].startswith("me:ssh-ed25519 "), "the key is there from the beginning"
    assert "POST setMetadata" not in compute_server.calls
    compute_server.attributes.clear()
    again = fleet_slices.with_slices(fleet, lambda _: None, touch=False)
    assert (config.parent / "known_hosts").read_text().count(" ssh-ed25519 AAAA") == 2, "an empty answer unpins nothing"
    assert again.hosts_of("pod") == ("pod-0", "pod-1")


def machine(server: ComputeServer, **metadata: str) -> None:
    """Create a machine as another user would."""
    items = [{"key": name.replace("_", "-"), "value": value} for name, value in metadata.items()]
    body = {"machineType": "https://x/tpu7x-standard-4t", "metadata": {"items": items}, "networkInterfaces": [{}, {}]}
    server._put_instance("proj/zones/us-x1-a/instances/pod", "pod", body)
    server.instance("pod")["status"] = "RUNNING"
    server.attributes["pod"] = {"ssh-ed25519": "AAAA"}


def installed(server: ComputeServer) -> str:
    items = server.instance("pod")["metadata"].get("items", [])
    return next((item["value"] for item in items if item["key"] == "ssh-keys"), "")


@pytest.mark.parametrize(
    ("project", "own", "expected"),
    [
        ({}, {}, "installed"),
        ({"enable-oslogin": "TRUE"}, {}, "refused"),
        ({}, {"enable_oslogin": "TRUE"}, "refused"),
        ({"enable-oslogin": "TRUE"}, {"enable_oslogin": "FALSE"}, "installed"),
        ({"ssh-keys": "me:KEY me"}, {}, "unchanged"),
        ({"ssh-keys": "me:KEY me"}, {"block_project_ssh_keys": "TRUE"}, "installed"),
        ({}, {"ssh_keys": "you:ssh-rsa AAAA you"}, "installed"),
    ],
    ids=["none", "project-os-login", "own-os-login", "switched-off", "project-key", "project-blocked", "beside-others"],
)
def test_os_login_and_keys_are_detected(
    compute_server: ComputeServer, key: str, project: dict[str, str], own: dict[str, str], expected: str
) -> None:
    fleet = fleet_of(key, user="me", reach="internal")
    machine(compute_server)
    fleet_slices.with_slices(fleet, lambda _: None)  # creates the key
    public = " ".join(Path(f"{key}.pub").read_text().split()[:2])
    compute_server.project_metadata = {name: value.replace("KEY", public) for name, value in project.items()}
    compute_server.resources.clear()
    machine(compute_server, **own)
    found = fleet_slices.with_slices(fleet, lambda _: None)
    if expected == "refused":
        with pytest.raises(UsageError, match=r"requires OS Login.*os_login: YOU@EXAMPLE.COM"):
            found.target("pod")
        return
    assert found.hosts_of("pod") == ("pod-0",), "two interfaces are one machine"
    assert (f"me:{public} me" in installed(compute_server)) == (expected == "installed")
    assert own.get("ssh_keys", "") in installed(compute_server)


def test_status_of_spot_machine_follows_its_state(compute_server: ComputeServer, key: str) -> None:
    machine(compute_server)
    fleet = fleet_of(key)
    for state, status in (
        ("RUNNING", "ready"),
        ("STOPPING", "stopping"),
        ("TERMINATED", "preempted"),
        ("NEW", "unknown"),
    ):
        compute_server.instance("pod")["status"] = state
        assert fleet_slices.target_slice_status(fleet, "pod")[0] == status
    compute_server.resources.clear()
    assert fleet_slices.target_slice_status(fleet, "pod")[0] == "preempted", "it is deleted, which the service answers"
    compute_server.faults.append(Fault("GET .*", 403, "forbidden", "no", times=99))
    assert fleet_slices.target_slice_status(fleet, "pod")[0] == "unknown"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"machine_type": "n2-standard-8", "create": True}, "machine_type is 'n2-standard-8'"),
        ({"topology": "2x2x3x1"}, "do not make a topology of 2x2x3x1"),
        ({"topology": "1x3x1"}, "do not make a topology of 1x3x1"),
        ({"reserved": True}, "is reserved and names no reservation"),
        ({"machine_type": "ct5lp-hightpu-4t", "create": True}, "Compute Engine creates no v5e"),
        ({"slices": 2}, "Multislice is not supported"),
        (
            {"flex_start": True, "run_duration": "4h", "valid_until": "6h"},
            "waits for flex-start capacity for 2h at most",
        ),
        ({"boot_disk_size": 1}, "boot_disk_size is 1"),
        ({"runtime_version": "x"}, "targets.pod.runtime_version is unknown"),
    ],
    ids=lambda value: "",
)
def test_invalid_compute_target_is_refused(key: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        fleet_of(key, **words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("machine_type", "topology", "devices"),
    [
        ("tpu7x-standard-4t", None, 8), ("tpu7x-standard-4t", "2x2x2", 16), ("ct6e-standard-8t", None, 8),
        ("ct6e-standard-4t", "4x4", 16), ("ct5p-hightpu-4t", "2x2x4", 16), ("ct5p-hightpu-1t-tpu", None, 1),
    ],
)  # fmt: skip
def test_device_count_follows_from_machine_type(machine_type: str, topology: str | None, devices: int) -> None:
    assert ComputeTarget(machine_type=machine_type, topology=topology).device_count == devices
