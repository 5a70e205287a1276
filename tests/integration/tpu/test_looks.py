"""Looks that fail, zones that do not exist, and other answers of the Cloud TPU service that prove nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, GoogleConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.tpu_target import TpuTarget
from midstream.providers import fleet_slices, slice_service
from midstream.providers.provider import ErrorKind, ProviderError, SliceStatus
from midstream.providers.tpu.provider import TpuProvider
from simulators.google.tpu_api import Fault, TpuServer, fast_polling, tpu_server
from simulators.google.tpu_nodes import QueuedState, Worker

__all__ = ["fast_polling", "tpu_server"]
pytestmark = pytest.mark.usefixtures("fast_polling")
STATUS = grpc.StatusCode
PLACE = "projects/p/locations/z"
POD = TpuTarget(
    project="p", zone="z", accelerator_type="v3-32", runtime_version="tpu-ubuntu2204-base", create=True, spot=True
)
QUEUED = TpuTarget(**{**vars(POD), "queued": True})
READ_QUOTA = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service 'tpu'"


@pytest.fixture
def google() -> TpuProvider:
    return TpuProvider()


def after(server: TpuServer, word: str, faults: list[Fault], lines: list[str]) -> Callable[[str], None]:
    """Return a progress function that plants faults at the first line with ``word``."""

    def say(line: str) -> None:
        lines.append(line)
        if word in line and not server.faults:
            server.faults += faults

    return say


@pytest.mark.parametrize("target", [POD, QUEUED], ids=["node", "queued"])
@pytest.mark.parametrize(
    ("code", "message"),
    [
        (STATUS.RESOURCE_EXHAUSTED, READ_QUOTA),
        (STATUS.INTERNAL, "internal error"),
        (STATUS.UNAUTHENTICATED, "Request had invalid authentication credentials"),
        (STATUS.UNAVAILABLE, "failed to connect to all addresses"),
        (STATUS.PERMISSION_DENIED, "Permission 'tpu.nodes.get' denied on 'x'"),
        (STATUS.DEADLINE_EXCEEDED, "Deadline Exceeded"),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, grpc.StatusCode) else "",
)
def test_failed_look_keeps_creation(
    tpu_server: TpuServer, google: TpuProvider, target: TpuTarget, code: grpc.StatusCode, message: str
) -> None:
    faults = [Fault("Get(Node|QueuedResource)", code, message, times=5), Fault("GetOperation", code, message, times=3)]
    lines: list[str] = []
    made = google.create("pod", target, after(tpu_server, "requesting", faults, lines))
    assert made.status == SliceStatus.READY
    assert faults[0].times == 0, "the faults were met"
    assert target.queued or faults[1].times < 3
    assert any("no answer" in line and "looked up again" in line for line in lines), lines
    assert (len(tpu_server.created), tpu_server.called("DeleteNode"), tpu_server.called("DeleteQueuedResource")) == (
        1,
        0,
        0,
    )


class Clock:
    """A clock that moves by ``step`` seconds when a creation reads it; ``sleep`` moves it alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: TpuServer, step: float) -> None:
        self.awake, self.slept, self.step = 0.0, 0.0, step
        monkeypatch.setattr(slice_service, "clock", self.read)
        monkeypatch.setattr(slice_service, "awake_clock", lambda: self.awake)
        server.clock = lambda: self.awake + self.slept

    def read(self) -> float:
        self.awake += self.step
        return self.awake + self.slept


def test_queue_place_is_kept_until_valid_until(
    tpu_server: TpuServer, google: TpuProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, tpu_server, 120.0)
    target = TpuTarget(**{**vars(QUEUED), "valid_until": "6h"})
    tpu_server.delay = 5400.0
    silence = Fault("Get", STATUS.UNAVAILABLE, "no route to host", times=12)  # for more than an hour
    lines: list[str] = []
    made = google.create("pod", target, after(tpu_server, "WAITING", [silence], lines))
    assert (made.status, silence.times) == (SliceStatus.READY, 0)
    assert len(tpu_server.created) == 1
    assert not tpu_server.called("DeleteQueuedResource")


def test_slice_that_was_ready_during_sleep_is_kept(
    tpu_server: TpuServer, google: TpuProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, tpu_server, 10.0)
    tpu_server.delay = 600.0
    silence = Fault("Get", STATUS.UNAVAILABLE, "network is unreachable", times=6)

    def say(line: str) -> None:
        if "WAITING" in line and not clock.slept:
            clock.slept = 8 * 3600.0  # and the network is not back when the machine wakes
            tpu_server.faults.append(silence)

    assert google.create("pod", QUEUED, say).status == SliceStatus.READY
    assert silence.times == 0
    assert not tpu_server.called("DeleteQueuedResource")


def test_silence_after_the_limit_ends_creation(
    tpu_server: TpuServer, google: TpuProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, tpu_server, 60.0)
    tpu_server.delay = 100000.0
    silence = Fault("Get", STATUS.UNAVAILABLE, "network is unreachable", times=99)

    def say(line: str) -> None:
        if "CREATING" in line and not clock.slept:
            clock.slept = 3700.0
            tpu_server.faults.append(silence)
        if "being deleted" in line:
            tpu_server.clock = lambda: 1e9

    def find(*arguments: object, **words: object) -> object:
        silence.times = 0  # the service answers again by the time of the deletion
        return real(*arguments, **words)  # type: ignore[arg-type]

    real = slice_service.find_patiently
    first = [True]

    def patiently(*arguments: object, **words: object) -> object:
        if first:  # the look before the creation
            first.clear()
            return real(*arguments, **words)  # type: ignore[arg-type]
        return find(*arguments, **words)

    monkeypatch.setattr(slice_service, "find_patiently", patiently)
    with pytest.raises(ProviderError, match=r"has not answered since .*network is unreachable") as caught:
        google.create("pod", POD, say)
    assert caught.value.kind == ErrorKind.TIMEOUT
    assert not tpu_server.nodes


def test_failed_look_does_not_end_deletion(tpu_server: TpuServer, google: TpuProvider) -> None:
    google.create("pod", POD, lambda _: None)
    tpu_server.faults += [
        Fault("DeleteNode", STATUS.UNAUTHENTICATED, "expired"),
        Fault("GetNode", STATUS.INTERNAL, "internal"),
        Fault("GetNode", STATUS.RESOURCE_EXHAUSTED, READ_QUOTA),
    ]
    google.delete("p/z/pod", lambda _: None)
    assert not tpu_server.nodes


def test_deletion_spares_a_later_slice_of_the_name(tpu_server: TpuServer, google: TpuProvider) -> None:
    google.create("pod", POD, lambda _: None)

    def say(line: str) -> None:
        if "being deleted" in line:  # another user takes the name at once
            with tpu_server.lock:
                tpu_server.nodes.clear()
                tpu_server.operations.clear()
                tpu_server.create(PLACE, "pod", tpu_v2.Node(accelerator_type="v3-8"))

    google.delete("p/z/pod", say)
    assert f"{PLACE}/nodes/pod" in tpu_server.nodes


# ---------------------------------------------------------------------------------------------------- reservations


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ({"reserved": True}, "projects/p/locations/z/reservations/-"),
        ({"reservation": "ours"}, "projects/p/locations/z/reservations/ours"),
        ({"reservation": "other/ours"}, "projects/other/locations/z/reservations/ours"),
        (
            {"reservation": "projects/other/locations/z/reservations/ours"},
            "projects/other/locations/z/reservations/ours",
        ),
    ],
    ids=["any", "own", "other-project", "full"],
)
def test_reserved_queue_request_names_reservation(
    tpu_server: TpuServer, google: TpuProvider, words: dict[str, object], name: str
) -> None:
    target = TpuTarget(**{**vars(QUEUED), "spot": False, **words})
    google.create("pod", target, lambda _: None)
    (request,) = tpu_server.queued.values()
    assert request.reservation_name == name
    found = google.find("pod", target)
    assert found is not None
    assert found.price_class == target.price_class == "reserved"


@pytest.mark.parametrize(
    ("words", "model", "more"),
    [
        ({"flex_start": True, "run_duration": "4h"}, "FLEX_START", {"runDuration": {"maxRunDuration": "14400s"}}),
        ({"reservation": "may", "calendar": True}, "RESERVATION_BOUND", {}),
    ],
    ids=["flex-start", "calendar"],
)
def test_v2alpha1_fields_reach_the_service(
    tpu_server: TpuServer, google: TpuProvider, words: dict[str, object], model: str, more: dict[str, object]
) -> None:
    target = TpuTarget(**{**vars(QUEUED), "spot": False, "accelerator_type": "v6e-8", **words})
    tpu_server.rest_faults.append((503, True))  # it has its effect, and the answer is lost
    made = google.create("pod", target, lambda _: None)
    body = tpu_server.bodies[0]
    assert tpu_server.bodies == [body, body], "the call without an answer is repeated as it was"
    assert body["provisioningModel"] == model
    assert {key: body[key] for key in more} == more
    assert body["queueingPolicy"] == {"validUntilDuration": "3600s"}
    assert "spot" not in body
    assert "guaranteed" not in body
    assert made.price_class == target.price_class
    assert len(tpu_server.created) == 1
    google.delete(made.path, lambda _: None)
    assert not tpu_server.nodes
    assert not tpu_server.queued


# --------------------------------------------------------------------------------------------- what is read of a node


def test_unknown_zone_keeps_the_words_of_the_service(tpu_server: TpuServer) -> None:
    words = "Location us-nowhere1-a is not found or access is unauthorized."
    tpu_server.faults.append(Fault("List", STATUS.PERMISSION_DENIED, words))
    (problem,) = fleet_slices.list_slices(Fleet(google=GoogleConfig(["p"], ["us-nowhere1-a"]))).problems
    assert words in problem
    assert "gcloud compute tpus locations list --project=p" in problem
    assert "a permission is missing" not in problem


def test_worker_with_several_interfaces_counts_once(tpu_server: TpuServer, google: TpuProvider) -> None:
    tpu_server.interfaces = 3
    made = google.create("pod", POD, lambda _: None)
    assert len(made.workers) == 4
    assert len({worker.internal for worker in made.workers}) == 4
    assert all(worker.external for worker in made.workers)


def test_state_newer_than_the_library_is_listed(tpu_server: TpuServer) -> None:
    tpu_server.create(PLACE, "pod", tpu_v2.Node(accelerator_config={"type_": "V5LITE_POD", "topology": "4x4"}))
    raw = tpu_v2.Node.pb(tpu_server.nodes[f"{PLACE}/nodes/pod"])
    raw.state, raw.accelerator_config.type_ = 99, 77
    tpu_server.operations.clear()
    (found,) = fleet_slices.list_slices(Fleet(google=GoogleConfig(["p"]))).slices
    assert (found.state, found.status, found.accelerator_type) == ("99", SliceStatus.UNKNOWN, "77")


def test_multislice_is_shown_and_refused_by_name(tpu_server: TpuServer, google: TpuProvider) -> None:
    spec = {"parent": PLACE, "multislice_params": {"node_count": 2, "node_id_prefix": "pod"}, "node": {}}
    queued = tpu_v2.QueuedResource(tpu={"node_spec": [spec]}, state={"state": QueuedState.WAITING_FOR_RESOURCES})
    tpu_server.enqueue(PLACE, "pod", queued)
    (found,) = fleet_slices.list_slices(Fleet(google=GoogleConfig(["p"]))).slices
    assert found.multislice
    assert "one of a Multislice" in found.text()
    fleet = parse_fleet("targets: {pod: {type: tpu, project: p, zone: z}}")
    with pytest.raises(UsageError, match=r"one of a Multislice .*a target is one slice"):
        fleet_slices.with_slices(fleet, lambda _: None, touch=False).target("pod")
    with pytest.raises(UsageError, match="Multislice is not supported"):
        parse_fleet("targets: {pod: {type: tpu, project: p, zone: z, slices: 2}}")


# ------------------------------------------------------------------------------------------------- their host keys


def fleet_of(tmp_path: Path, **more: str) -> Fleet:
    words = {"type": "tpu", "project": "p", "zone": "z", "name": "n", "identity_file": f"{tmp_path}/key", **more}
    return parse_fleet(json.dumps({"targets": {"pod": words}}))


def known_hosts(fleet: Fleet) -> str:
    line = Path(fleet.hosts["pod-0"].ssh_config).parent / "known_hosts"  # type: ignore[attr-defined]
    return line.read_text()


def test_pinned_host_keys_outlive_answers_without_keys(tpu_server: TpuServer, tmp_path: Path) -> None:
    workers = [Worker(f"10.0.0.{k}", f"127.0.0.{k}", {"ssh-ed25519": f"AAAA{k}"}, f"t1v-{k}") for k in (2, 3)]
    tpu_server.workers["n"] = workers
    tpu_server.create(PLACE, "n", tpu_v2.Node(accelerator_type="v3-16"))
    tpu_server.make_ready(f"{PLACE}/nodes/n")
    fleet = fleet_of(tmp_path, reach="iap")
    first = fleet_slices.with_slices(fleet, lambda _: None)
    pinned = known_hosts(first)
    assert pinned.count("ssh-ed25519 AAAA") == 2
    lines: list[str] = []
    denied = "Permission 'tpu.nodes.getGuestAttributes' denied on 'x'"
    tpu_server.faults.append(Fault("GetGuestAttributes", STATUS.PERMISSION_DENIED, denied))
    unread = fleet_slices.with_slices(fleet, lines.append)
    assert unread.hosts_of("pod") == ("pod-0", "pod-1"), "the slice may be training"
    assert any("the host keys that are known stay in use" in line for line in lines)
    assert known_hosts(unread) == pinned
    tpu_server.workers["n"] = [
        workers[0],
        Worker("10.0.0.3", "127.0.0.3", {}, "t1v-3"),
    ]  # one of them publishes nothing
    emptied = fleet_slices.with_slices(fleet, lambda _: None, touch=False)
    assert known_hosts(emptied) == pinned
    assert "start-iap-tunnel t1v-3" in Path(emptied.hosts["pod-0"].ssh_config).read_text()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------------ fleet file


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("create: true, accelerator_type: v3-8, runtime_version: r, name: Pod_1", "name is 'Pod_1'"),
        ("create: true, accelerator_type: v3-8, runtime_version: r, name: 9pod", "name is '9pod'"),
        ("name: 'a/b'", "name is 'a/b'"),
        ("accelerator_type: tpu7x-8", "type: gce, and machine_type: tpu7x-standard-4t"),
        ("reservation: 'Not a name', queued: true", "reservation is 'Not a name'"),
        ("flex_start: true, queued: true", "is flex_start, and has no run_duration"),
        ("flex_start: true, run_duration: 8d, queued: true", "10m to 7d"),
        ("flex_start: true, run_duration: 4h", "is flex_start, and is not queued"),
        ("flex_start: true, run_duration: 4h, spot: true, queued: true", "is spot and flex_start"),
        ("run_duration: 4h", "is not flex_start, and has a run_duration"),
        ("calendar: true, queued: true", "is calendar, and names no reservation"),
    ],
    ids=lambda value: "",
)
def test_invalid_slice_is_refused_when_read(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fleet(f"targets: {{pod: {{type: tpu, project: p, zone: z, {words}}}}}")
    assert message in str(caught.value)


def test_target_name_that_is_no_node_id_is_refused() -> None:
    text = (
        "targets: {Pod_1: {type: tpu, project: p, zone: z, create: true, accelerator_type: v3-8, runtime_version: r}}"
    )
    with pytest.raises(UsageError, match=r"the target's name, .* is 'Pod_1'"):
        parse_fleet(text)
    named = parse_fleet(text.replace("zone: z", "zone: z, name: pod-1"))
    assert named.targets["Pod_1"].name == "pod-1"  # type: ignore[attr-defined]
