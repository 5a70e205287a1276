"""The end of a slice, told from a lost connection: by its metadata server, its provider, and what SSH sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import fleet_slices, interface
from midstream.launch.errors import LaunchError
from midstream.launch.rendezvous import check_numbers
from midstream.migrate.failover.guard import GOING, GONE, SILENT, WELL, judge
from midstream.remote.machine import preemption_notices
from midstream.watch.snapshot import DOWN, LIVE, HostView, RunView, Snapshot
from midstream_engine import records
from simulators.metadata import MetadataServer
from simulators.slice import Slice, target_text
from simulators.sshd import Lab
from simulators.tpu_api import Fault, TpuServer, tpu_server
from simulators.tpu_nodes import QueuedState, State

__all__ = ["tpu_server"]
NODE = "projects/lab/locations/here-a/nodes/n"


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


def test_notices_of_the_metadata_server(metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> dict | None:
        return preemption_notices.read(scheduled="/no/such/file", product="/no/such/file")

    monkeypatch.delenv(preemption_notices.SERVER, raising=False)
    assert read() is None
    assert metadata.asked == [], "a machine that is not Google's asks nobody"
    monkeypatch.setenv(preemption_notices.SERVER, metadata.address)
    assert read() is None
    metadata.values["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    assert read() is None, "a machine that is moved while it runs goes on"
    metadata.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert (read() or {})["kind"] == "maintenance"
    metadata.values["preempted"] = "TRUE"
    assert (read() or {})["kind"] == "preempted"
    monkeypatch.setenv(preemption_notices.SERVER, "127.0.0.1:9")
    assert read() is None, "a server that does not answer says nothing"


@pytest.mark.system
def test_a_worker_is_asked_over_ssh(lab: Lab, tpu_server: TpuServer, metadata: MetadataServer) -> None:
    node = Slice(lab, "n", 1, {preemption_notices.SERVER: metadata.address})
    tpu_server.workers["n"] = node.workers
    fleet = fleet_of(lab, node)
    fleet_slices.provider(fleet.targets["pod"]).create("pod", fleet.targets["pod"], print)
    hosts = Hosts(fleet_slices.found(fleet, print))
    try:
        assert hosts.get("pod-0").call("machine.preemption_notices.read") is None
        metadata.values["preempted"] = "TRUE"
        assert hosts.get("pod-0").call("machine.preemption_notices.read")["kind"] == "preempted"
    finally:
        hosts.close()


@pytest.mark.system
def test_workers_that_are_numbered_otherwise_are_refused(
    lab: Lab, tpu_server: TpuServer, metadata: MetadataServer
) -> None:
    node = Slice(lab, "n", 2, {preemption_notices.SERVER: metadata.address})
    tpu_server.workers["n"] = node.workers
    fleet = fleet_of(lab, node)
    fleet_slices.provider(fleet.targets["pod"]).create("pod", fleet.targets["pod"], print)
    hosts = Hosts(fleet_slices.found(fleet, print))
    members = [hosts.get(f"pod-{index}") for index in range(2)]
    try:
        check_numbers(members)  # nobody tells a number
        metadata.values["attributes/agent-worker-number"] = "0"  # both
        assert members[1].call("machine.preemption_notices.worker") == 0
        with pytest.raises(LaunchError, match=r"pod-1 says that it is worker 0 of its slice, .* listed as worker 1"):
            check_numbers(members)
    finally:
        hosts.close()


def fleet_of(lab: Lab, node: Slice) -> Fleet:
    worker = f"{{devices: 1, python: {sys.executable}}}"
    words = target_text("pod", node, lab.directory / "key", create="true", queued="true", worker=worker)
    return parse_fleet("targets:\n" + words, "fleet.yaml")


def seen(link: str, state: str = records.TRAINING) -> Snapshot:
    """A run on worker 0, as the watch sees it."""
    status = records.Status(state, 7, 0, "boot", os.getpid(), 1, 0.0, attempt=1)
    run = RunView("r", "pod-0", records.Fence(1, "pod"), None, 1, status, running=True)
    return Snapshot(1, 0.0, (HostView("pod-0", "ssh", link, error="timed out"),), (run,))


def test_silence_is_told_from_an_end_by_the_provider(tpu_server: TpuServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "FIRST", 0.005)
    text = "hosts: {pod-0: {type: local}}\n"
    text += "targets: {pod: {type: tpu, project: lab, zone: here-a, name: n, hosts: [pod-0]}}\n"
    fleet = parse_fleet(text)
    tpu_server.create("projects/lab/locations/here-a", "n", tpu_v2.Node(accelerator_type="v3-8"))
    node = tpu_server._ready(NODE)

    def verdict(link: str, state: str = records.TRAINING) -> tuple[str, str]:
        _, found = judge(seen(link, state), "r", "", fleet_slices.standing(fleet, "pod-0"))
        return found.kind, found.reason

    assert verdict(LIVE)[0] == WELL
    kind, why = verdict(DOWN)
    assert (kind, "is READY" in why) == (SILENT, True), "the connection is lost, the machine is not"
    node.health = tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    assert verdict(LIVE)[0] == GOING
    assert verdict(DOWN)[0] == SILENT
    node.health, node.state = tpu_v2.Node.Health.HEALTHY, State.REPAIRING
    assert verdict(LIVE)[0] == GOING
    assert verdict(LIVE, records.STOPPED)[0] != GOING, "there is nothing to be saved"
    node.state = State.PREEMPTED
    assert verdict(LIVE)[0] == GOING, "it still answers: what it has can be saved"
    kind, why = verdict(DOWN)
    assert (kind, "lab/here-a/n is PREEMPTED" in why) == (GONE, True)
    # A state that says nothing, a service that does not answer: no evidence.
    node.state = State.UNKNOWN
    assert verdict(DOWN)[0] == SILENT
    tpu_server.faults.append(Fault("GetNode", grpc.StatusCode.PERMISSION_DENIED, "denied", times=1))
    kind, why = verdict(DOWN)
    assert (kind, "cannot be asked" in why) == (SILENT, True)
    # The node says READY, its request knows better.
    queue = "projects/lab/locations/here-a/queuedResources/n"
    spec = {"parent": "projects/lab/locations/here-a", "node_id": "n", "node": {}}
    tpu_server.queued[queue] = tpu_v2.QueuedResource(
        name=queue, state={"state": QueuedState.SUSPENDED}, tpu={"node_spec": [spec]}
    )
    node.state, node.queued_resource = State.READY, queue
    assert verdict(DOWN)[0] == GONE
    del tpu_server.nodes[NODE], tpu_server.queued[queue]
    kind, why = verdict(DOWN)
    assert (kind, "is not there any more" in why) == (GONE, True)
    assert fleet_slices.standing(replace(fleet, targets={}), "pod-0") == (interface.UNCLEAR, "")
