"""A guard migrates a run on evidence that its machine is lost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate import notify
from midstream.migrate.failover import guard as guarding
from midstream.migrate.failover import guard_consent
from midstream.migrate.failover.guard import Guard
from midstream.migrate.journal import migration_state
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.plan import Plan
from midstream.watch.watcher import Watcher
from midstream_core import records
from simulators.google.tpu_api import TpuServer, tpu_server
from simulators.object_stores.bucket import bucket_server
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream, refused, start_midstream
from support.run_directory import RunDirectory, dead_process

pytestmark = pytest.mark.drawn

__all__ = ["tpu_server"]


def notified(path: Path) -> list[dict]:
    """Return the events that the on_event command has received so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_guard_migrates_run_of_killed_engine_and_notifies(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    one, two = lab.local("one", devices=2), lab.local("two", devices=1)
    fleet = lab.fleet_file(one=one, two=two)
    events = tmp_path / "events"
    fleet.write_text(fleet.read_text() + f'\non_event: "cat >> {events}"\n')
    training = (*SLOWER, "--trainer.num_train_steps", "5000", "--trainer.checkpointer.keep", "[{every: 5}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    source, target = runs(one.root, "r"), runs(two.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "one,two", "--tries", "2", "--json")
    try:
        time.sleep(3.0)  # the guard watches, and does nothing while the run trains
        assert source.running
        assert notified(events) == []
        source.kill()
        target.wait(lambda run: (status := run.status()) is not None and status.step > 5, "the run on two", 180.0)
        deadline = time.monotonic() + 120.0
        while not any(event["kind"] == "finished" for event in notified(events)):
            assert time.monotonic() < deadline, notified(events)
            time.sleep(0.2)
        assert guard.poll() is None, "it guards the run on its new machine"
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        output, errors = guard.communicate(timeout=60.0)
    finally:
        guard.kill()
    assert guard.returncode == 0, errors
    kinds = [json.loads(line)["kind"] for line in output.splitlines()]
    assert kinds == ["lost", "migrating", "finished", "finished"]
    assert [(event["event"], event["kind"]) for event in notified(events)] == [
        ("guard", "lost"), ("migration", "finished"), ("guard", "finished"),
    ]  # fmt: skip
    assert target.fence.owner == "two"
    assert target.fence.epoch == 2


@pytest.mark.parametrize("target", ["gpu", "other"])
def test_guard_migrates_bucket_run_of_preempted_slice(
    tpu_server: TpuServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Unreachable machines are reported; the provider's PREEMPTED starts a migration.

    The run came from ``gpu``, which still has a copy: the migration reads that copy, or returns to ``gpu``.
    """
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    for name, seconds in (
        ("EVIDENCE_DURATION", 0.0),
        ("UNREACHABLE_TIMEOUT", 0.0),
        ("NOTICE_INTERVAL", 0.0),
        ("POLL_INTERVAL", 0.05),
    ):
        monkeypatch.setattr(guarding, name, seconds)
    tpu_server.create("projects/p/locations/z", "pod", tpu_v2.Node(accelerator_type="v3-8"))
    tpu_server.make_ready("projects/p/locations/z/nodes/pod")
    left, lost = RunDirectory(tmp_path / "gpu", "r"), RunDirectory(tmp_path / "lost", "r")
    Path(left.paths.config).write_text("trainer: {train_batch_size: 8, num_train_steps: 100}\n")
    left.status(1, records.STOPPED, 20, dead_process())
    left.checkpoint(20)
    left.fence(2, "pod", 20, [records.Seal(1, 20).to_json()])
    saved = lost.checkpoint(40, attempt=2, epoch=2)
    Path(lost.paths.checkpoint(saved), records.TRAIN).write_text('{"state": {"data_digest": ""}}')
    fleet = parse_fleet(
        f"hosts:\n  gpu: {{type: local, root: {tmp_path}/gpu, devices: 1, python: {sys.executable}}}\n"
        f"  other: {{type: local, root: {tmp_path}/other, devices: 1, python: {sys.executable}}}\n"
        "  pod-0: {type: ssh, address: '127.0.0.1:1', root: /nowhere, store: ours}\n"
        "stores: {ours: {url: gs://runs/ours}}\n"
        "targets: {pod: {type: tpu, project: p, zone: z, hosts: [pod-0], worker: {store: ours}}}\n"
    )
    plans: list[Plan] = []
    events: list[dict] = []

    def start(_: Fleet, plan: Plan) -> str:
        plans.append(plan)
        return plan.migration

    def notice(event: dict) -> None:
        events.append(event)
        if event["kind"] == notify.NEEDS_YOU and not plans:
            assert "nothing is done without evidence" in event["message"]
            tpu_server.preempt("pod")

    done = Event("result", 0.0, detail={"ok": True, "outcome": migration_state.COMPLETED})
    monkeypatch.setattr(guarding.migration_process, "start", start)  # test_tpu_source_preempted.py runs a migration
    monkeypatch.setattr(guarding.migration_process, "follow", lambda _: iter([done]))
    with bucket_server("runs") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        for path in Path(lost.paths.checkpoint(saved)).iterdir():
            bucket.put("runs", f"ours/runs/r/checkpoints/{saved}/{path.name}", path.read_bytes())
        hosts = HostPool(fleet)
        watch = Watcher(fleet, hosts)
        watch.start()
        try:
            assert watch.wait_for(lambda snapshot: bool(snapshot.copies("r")), timeout=60.0)
            guard = Guard(fleet, hosts, watch, "r", ["pod", target], 1, notice)
            shown = watch.snapshot()
            proposal = guard_consent.propose(hosts, shown, shown.copies("r")[0], ["pod", target])
            assert ["has no signed record of its owner: pod" in line for line in proposal.lines] == [True]
            with pytest.raises(MidstreamError, match="becomes its signed owner"):
                guard_consent.require(proposal, agreed=False)
            guard.consent = guard_consent.accept(hosts, shown, proposal)
            with pytest.raises(MidstreamError, match="no tries are left"):
                guard.run()  # no migration ran: the guard tries again
        finally:
            watch.stop()
            hosts.close()
    (plan,) = plans
    assert (plan.source, plan.target, plan.policy.source_lost, plan.mode) == ("gpu", target, True, "cold")
    assert (plan.route.source_store, plan.route.target_store, plan.checkpoint) == ("gs://runs/ours", "", saved)
    assert events[0]["kind"] == notify.NEEDS_YOU, "an unreachable machine is reported"
    first, *later = (event for event in events if event["kind"] != notify.NEEDS_YOU)
    assert (first["kind"], [event["kind"] for event in later[:2]]) == (notify.LOST, ["migrating", notify.FINISHED])
    assert "p/z/pod is PREEMPTED" in first["message"]


def test_guard_refuses_invalid_arguments(lab: Lab) -> None:
    fleet = lab.fleet_file(one=lab.local("one"))
    refused(midstream("--fleet", fleet, "--guard", "r"), 2, "--to")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "nowhere"), 2, "nowhere")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", ", "), 2, "names no target")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one"), 2, "no run 'r'")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one", "--tries", "0"), 2, "--tries")
