"""Evidence for the end of a slice: metadata server, provider, SSH."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import grpc
import pytest
from google.cloud import tpu_v2

from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.install.errors import LaunchError
from midstream.launch.host_links import check_numbers
from midstream.migrate.failover.guard import HEALTHY, LOST, TERMINATING, UNREACHABLE, judge
from midstream.providers import fleet_slices, provider
from midstream.providers.provider import SliceStatus
from midstream.watch.snapshot import DOWN, LIVE, HostView, RunView, Snapshot
from midstream_core import google_metadata, records
from midstream_host.machine import preemption_notices
from simulators.google.metadata import MetadataServer
from simulators.google.slice import Slice, target_text
from simulators.google.tpu_api import Fault, TpuServer, tpu_server
from simulators.google.tpu_nodes import QueuedState, State
from simulators.sshd import Lab

__all__ = ["tpu_server"]
NODE = "projects/lab/locations/here-a/nodes/n"


def test_metadata_server_notices(metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> preemption_notices.Notice | None:
        return preemption_notices.read(scheduled="/no/such/file", product="/no/such/file")

    monkeypatch.delenv(google_metadata.VARIABLE, raising=False)
    assert read() is None
    assert metadata.requested == [], "other machines send no request"
    monkeypatch.setenv(google_metadata.VARIABLE, metadata.address)
    assert read() is None
    metadata.values["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
    assert read() is None, "a live-migrated machine continues"
    metadata.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert getattr(read(), "kind", "") == "maintenance"
    metadata.values["preempted"] = "TRUE"
    assert getattr(read(), "kind", "") == "preempted"
    monkeypatch.setenv(google_metadata.VARIABLE, "127.0.0.1:9")
    assert read() is None, "an unreachable server is no notice"


def created(lab: Lab, tpu_server: TpuServer, node: Slice) -> HostPool:
    """Create the slice; return the hosts of its fleet."""
    tpu_server.workers["n"] = node.workers
    fleet = fleet_of(lab, node)
    target = fleet.slices["pod"]
    fleet_slices.provider_of(target).create("pod", target, print)
    return HostPool(fleet_slices.with_slices(fleet, print))


@pytest.mark.system
def test_notice_of_worker_is_read_over_ssh(lab: Lab, tpu_server: TpuServer, metadata: MetadataServer) -> None:
    node = Slice(lab, "n", 1, {google_metadata.VARIABLE: metadata.address})
    hosts = created(lab, tpu_server, node)
    try:
        assert hosts.get("pod-0").call(preemption_notices.read)() is None
        metadata.values["preempted"] = "TRUE"
        notice = hosts.get("pod-0").call(preemption_notices.read)()
        assert notice is not None
        assert notice.kind == "preempted"
    finally:
        hosts.close()


@pytest.mark.system
def test_workers_with_wrong_numbers_are_refused(lab: Lab, tpu_server: TpuServer, metadata: MetadataServer) -> None:
    node = Slice(lab, "n", 2, {google_metadata.VARIABLE: metadata.address})
    hosts = created(lab, tpu_server, node)
    members = [hosts.get(f"pod-{index}") for index in range(2)]
    try:
        check_numbers(members)  # without numbers
        metadata.values["attributes/agent-worker-number"] = "0"  # both
        assert members[1].call(preemption_notices.worker)() == 0
        with pytest.raises(LaunchError, match=r"pod-1 is worker 0 of its slice, .* listed as worker 1"):
            check_numbers(members)
    finally:
        hosts.close()


def fleet_of(lab: Lab, node: Slice) -> Fleet:
    worker = f"{{devices: 1, python: {sys.executable}}}"
    words = target_text("pod", node, lab.directory / "key", create="true", queued="true", worker=worker)
    return parse_fleet("targets:\n" + words, "fleet.yaml")


def snapshot_of(link: str, state: str = records.TRAINING) -> Snapshot:
    """Return a snapshot with a run on worker 0."""
    status = records.Status(state, 7, 0, "boot", os.getpid(), 1, 0.0, attempt=1)
    run = RunView("r", "pod-0", records.Fence(1, "pod"), None, 1, status, running=True)
    return Snapshot(1, 0.0, (HostView("pod-0", "ssh", link, error="timed out"),), (run,))


def test_verdict_depends_on_provider_status(tpu_server: TpuServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "FIRST_POLL_INTERVAL", 0.005)
    text = "hosts: {pod-0: {type: local}}\n"
    text += "targets: {pod: {type: tpu, project: lab, zone: here-a, name: n, hosts: [pod-0]}}\n"
    fleet = parse_fleet(text)
    tpu_server.create("projects/lab/locations/here-a", "n", tpu_v2.Node(accelerator_type="v3-8"))
    node = tpu_server.make_ready(NODE)

    def verdict(link: str, state: str = records.TRAINING) -> tuple[str, str]:
        _, found = judge(snapshot_of(link, state), "r", "", fleet_slices.host_slice_status(fleet, "pod-0"))
        return found.kind, found.reason

    assert verdict(LIVE)[0] == HEALTHY
    kind, reason = verdict(DOWN)
    assert (kind, "is READY" in reason) == (UNREACHABLE, True), "the connection is lost, the machine runs"
    node.health = tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    assert verdict(LIVE)[0] == TERMINATING
    assert verdict(DOWN)[0] == UNREACHABLE
    node.health, node.state = tpu_v2.Node.Health.HEALTHY, State.REPAIRING
    assert verdict(LIVE)[0] == TERMINATING
    assert verdict(LIVE, records.STOPPED)[0] != TERMINATING, "nothing can be saved"
    node.state = State.PREEMPTED
    assert verdict(LIVE)[0] == TERMINATING, "it still answers: its state can be saved"
    kind, reason = verdict(DOWN)
    assert (kind, "lab/here-a/n is PREEMPTED" in reason) == (LOST, True)
    # An unknown state or an unreachable service is no evidence.
    node.state = State.UNKNOWN
    assert verdict(DOWN)[0] == UNREACHABLE
    tpu_server.faults.append(Fault("GetNode", grpc.StatusCode.PERMISSION_DENIED, "denied", times=1))
    kind, reason = verdict(DOWN)
    assert (kind, "does not answer" in reason) == (UNREACHABLE, True)
    # The node is READY, and its queued request is SUSPENDED.
    queue = "projects/lab/locations/here-a/queuedResources/n"
    spec = {"parent": "projects/lab/locations/here-a", "node_id": "n", "node": {}}
    tpu_server.queued[queue] = tpu_v2.QueuedResource(
        name=queue, state={"state": QueuedState.SUSPENDED}, tpu={"node_spec": [spec]}
    )
    node.state, node.queued_resource = State.READY, queue
    assert verdict(DOWN)[0] == LOST
    del tpu_server.nodes[NODE], tpu_server.queued[queue]
    kind, reason = verdict(DOWN)
    assert (kind, "no longer exists" in reason) == (LOST, True)
    assert fleet_slices.host_slice_status(replace(fleet, targets={}), "pod-0") == (SliceStatus.UNKNOWN, "")
