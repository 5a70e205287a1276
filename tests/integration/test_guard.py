"""A guarded run is moved when its machine is certainly gone, and left alone when nobody knows."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from google.cloud import tpu_v2

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import Hosts
from midstream.migrate.failover import guard as guarding
from midstream.migrate.failover import notify
from midstream.migrate.failover.guard import Guard
from midstream.migrate.model import Event, Plan
from midstream.watch.watcher import Watch
from midstream_engine import records
from simulators.bucket import bucket_server
from simulators.sshd import Lab
from simulators.tpu_api import TpuServer, tpu_server
from support.command_line import SLOWER, TINY, midstream, refused, start_midstream
from support.run_directory import RunDirectory, dead_process

__all__ = ["tpu_server"]


def told(path: Path) -> list[dict]:
    """What the on_event command has been given so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_run_whose_engine_is_killed_goes_on_elsewhere_and_somebody_is_told(lab: Lab, runs, tmp_path: Path):
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
        time.sleep(3.0)  # the guard looks on while all is well, and does nothing
        assert source.alive
        assert told(events) == []
        source.kill()
        target.wait(lambda run: (status := run.status()) is not None and status.step > 5, "the run on two", 180.0)
        deadline = time.monotonic() + 120.0
        while not any(event["kind"] == "finished" for event in told(events)):
            assert time.monotonic() < deadline, told(events)
            time.sleep(0.2)
        assert guard.poll() is None, "it guards the run on its new machine"
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        output, talk = guard.communicate(timeout=60.0)
    finally:
        guard.kill()
    assert guard.returncode == 0, talk
    kinds = [json.loads(line)["kind"] for line in output.splitlines()]
    assert kinds == ["lost", "moving", "finished", "finished"]
    assert [(event["event"], event["kind"]) for event in told(events)] == [
        ("guard", "lost"), ("migration", "finished"), ("guard", "finished"),
    ]  # fmt: skip
    assert target.fence.owner == "two"
    assert target.fence.epoch == 2


@pytest.mark.parametrize("target", ["gpu", "other"])
def test_what_a_slice_left_in_a_bucket_is_moved_once_its_provider_says_that_it_is_gone(
    tpu_server: TpuServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
):
    """Its machines do not answer: that alone is told to a person. The run came from ``gpu``, which has a copy yet: it
    goes by way of that, or back to it."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    for name, seconds in (("PERSISTS", 0.0), ("SILENCE", 0.0), ("NOTICES_EVERY", 0.0), ("LOOK", 0.05)):
        monkeypatch.setattr(guarding, name, seconds)
    tpu_server.create("projects/p/locations/z", "pod", tpu_v2.Node(accelerator_type="v3-8"))
    tpu_server._ready("projects/p/locations/z/nodes/pod")
    tpu_server.operations.clear()  # it is made, and stays as it is
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

    def start(fleet: Fleet, plan: Plan) -> str:
        plans.append(plan)
        return plan.migration

    def tell(event: dict) -> None:
        events.append(event)
        if event["kind"] == notify.NEEDS_YOU and not plans:
            assert "nothing is done without evidence" in event["message"]
            tpu_server.preempt("pod")

    done = Event("result", 0.0, detail={"ok": True})
    monkeypatch.setattr(guarding.migration_process, "start", start)  # test_tpu_lost.py carries one out
    monkeypatch.setattr(guarding.migration_process, "follow", lambda migration: iter([done]))
    with bucket_server("runs") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        for path in Path(lost.paths.checkpoint(saved)).iterdir():
            bucket.put("runs", f"ours/runs/r/checkpoints/{saved}/{path.name}", path.read_bytes())
        hosts = Hosts(fleet)
        watch = Watch(fleet, hosts)
        watch.start()
        try:
            assert watch.wait_for(lambda snapshot: bool(snapshot.copies("r")), timeout=60.0)
            guard = Guard(fleet, hosts, watch, "r", ["pod", target], 1, tell)
            with pytest.raises(MidstreamError, match="the tries are spent"):
                guard.run()  # nobody has moved it: it would be moved again
        finally:
            watch.stop()
            hosts.close()
    (plan,) = plans
    assert (plan.source, plan.target, plan.source_lost, plan.mode) == ("gpu", target, True, "cold")
    assert (plan.source_store, plan.target_store, plan.checkpoint) == ("gs://runs/ours", "", saved)
    assert events[0]["kind"] == notify.NEEDS_YOU, "silence alone is told"
    lost, *then = (event for event in events if event["kind"] != notify.NEEDS_YOU)
    assert (lost["kind"], [event["kind"] for event in then[:2]]) == (notify.LOST, ["moving", notify.FINISHED])
    assert "p/z/pod is PREEMPTED" in lost["message"]


def test_what_cannot_be_guarded_is_refused(lab: Lab):
    fleet = lab.fleet_file(one=lab.local("one"))
    refused(midstream("--fleet", fleet, "--guard", "r"), 2, "--to")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "nowhere"), 2, "nowhere")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one"), 2, "no run 'r'")
    refused(midstream("--fleet", fleet, "--guard", "r", "--to", "one", "--tries", "0"), 2, "--tries")
