"""Migrations of a real run between a host and a real Slurm cluster, engines on virtual devices."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream_core import records
from simulators.clusters.slurm_cluster import SlurmCluster, login_node, slurm_cluster
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream, refused, start_midstream

__all__ = ["slurm_cluster"]
pytestmark = [pytest.mark.system, pytest.mark.slow]
TRAINING = (*SLOWER, "--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 2000}]")
# The source stops at the seal, so there is no loss past it to compare with.
CERTIFIED = {
    "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "not checked",
    "environment": "verified",
}  # fmt: skip


def fleet_file(lab: Lab, slurm: SlurmCluster, **sbatch: list[str]) -> tuple[Path, Path, Path]:
    """Write a fleet of a host and of targets of the cluster; return the file and both roots."""
    gpu, login = lab.host("gpu", devices=2), login_node(lab, slurm, "login", devices=2)
    fleet = lab.fleet_file(gpu=gpu.config, login=login.config)
    targets = [f"  {name}: {{type: slurm, host: login, sbatch: {json.dumps(flags)}}}" for name, flags in sbatch.items()]
    fleet.write_text(fleet.read_text() + "targets:\n" + "\n".join(targets) + "\n")
    return fleet, gpu.root, login.root


@pytest.fixture(autouse=True)
def _empty_queue(slurm_cluster: SlurmCluster) -> Iterator[None]:
    """Cancel what a failed test leaves in the queue of the shared cluster."""
    yield
    slurm_cluster.cancel_all()


def trains_again(run: Run) -> bool:
    status = run.status()
    return status is not None and status.epoch == 2 and status.step > 5


def claims(result: dict) -> dict[str, str]:
    return {claim["name"]: claim["verdict"] for claim in result["certificate"]["claims"]}


def test_run_migrates_to_allocation_that_waits_and_back(
    lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster
) -> None:
    fleet, here, there = fleet_file(lab, slurm_cluster, cluster=["--nodes=2", "--exclusive"])
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *TRAINING).code == 0
    source, target = runs(here, "r"), runs(there, "r")
    source.wait_step(5)
    blocker = slurm_cluster.submit("sleep 3600", "--nodes=3", "--exclusive")
    slurm_cluster.wait_state(blocker, "RUNNING")

    dry = midstream("--fleet", fleet, "--migrate", "r", "--to", "cluster", "--dry-run", "--json")
    assert dry.code == 0, dry.stderr
    [plan] = dry.of("plan")
    assert (plan["shape"]["source_devices"], plan["shape"]["target_devices"]) == (2, 4)
    assert any("SLURM allocation of 4 devices (cpu) on 2 nodes" in line for line in plan["policy"]["warnings"]), plan
    assert slurm_cluster.run("squeue", "--noheader", "--format", "%i").split() == [blocker], "a dry run submits nothing"

    # The standby waits in the queue while the source trains.
    words = ["--migrate", "r", "--to", "cluster", "--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json"]
    moving = start_midstream("--fleet", fleet, *words)
    try:
        end = time.monotonic() + 240
        while not (waiting := slurm_cluster.run("squeue", "--noheader", "--name", "midstream-r", "--format", "%i %T")):
            assert moving.poll() is None, moving.communicate()
            assert time.monotonic() < end
            time.sleep(0.2)
        job, state = waiting.split()
        assert state == "PENDING"
        before = source.status()
        assert before is not None
        source.wait_step(before.step + 40)
        assert slurm_cluster.state(job) == "PENDING"
        slurm_cluster.run("scancel", blocker)
        output, errors = moving.communicate(timeout=540)
    finally:
        moving.kill()
    events = [json.loads(line) for line in output.splitlines()]
    assert moving.returncode == 0, (errors, events[-3:])
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert any(note.startswith(f"job {job} waits in the queue: pending (") for note in notes), notes
    assert f"job {job} has started on cluster" in notes
    assert "the allocation of cluster has 4 devices (cpu), as planned" in notes
    assert claims(events[-1]) == CERTIFIED
    moved = target.status()
    assert moved is not None
    assert (moved.processes, moved.epoch, len(moved.devices)) == (2, 2, 4)
    assert target.fence.owner == "cluster"
    assert slurm_cluster.state(job) == "RUNNING"

    # And back: the job saves and ends.
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "gpu", *words[4:])
    assert moved.code == 0, moved.stderr
    assert claims(moved.result) == CERTIFIED
    assert slurm_cluster.wait_state(job, "COMPLETED") == "COMPLETED"
    assert source.fence.owner == "gpu"
    again = source.status()
    assert again is not None
    assert (again.epoch, again.state) == (3, records.TRAINING)
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0


def test_rollback_cancels_job_that_waits(lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster) -> None:
    fleet, here, there = fleet_file(lab, slurm_cluster, cluster=["--nodes=1", "--exclusive"])
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *TRAINING).code == 0
    source = runs(here, "r")
    runs(there, "r")
    source.wait_step(5)
    blocker = slurm_cluster.submit("sleep 3600", "--nodes=3", "--exclusive")
    slurm_cluster.wait_state(blocker, "RUNNING")
    moving = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "cluster", "--yes", "--json")
    try:
        migration = ""
        assert moving.stdout is not None
        for line in moving.stdout:
            event = json.loads(line)
            migration = migration or event.get("migration", "") or event.get("identity", {}).get("migration", "")
            if "waits in the queue" in event.get("message", ""):
                break
        job = slurm_cluster.run("squeue", "--noheader", "--name", "midstream-r", "--format", "%i").strip()
        rolled = midstream("--fleet", fleet, "--rollback", migration, "--yes")
        assert rolled.code in (0, 6), rolled.stderr
        moving.communicate(timeout=120)
    finally:
        moving.kill()
    assert slurm_cluster.wait_state(job, "CANCELLED") == "CANCELLED"
    status = source.status()
    assert status is not None
    assert (status.state, source.fence.epoch) == (records.TRAINING, 1)
    slurm_cluster.run("scancel", blocker)
    assert midstream("--fleet", fleet, "--stop", "r").code == 0


def test_guard_hands_on_job_before_its_time_limit(
    lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster
) -> None:
    fleet, here, there = fleet_file(lab, slurm_cluster, cluster=["--nodes=1", "--time=30", "--signal=TERM@20"])
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "cluster", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    source, target = runs(there, "r"), runs(here, "r")
    source.wait_step(5)
    # A migration takes minutes here, and the job has half an hour: the guard says its lead, and waits.
    guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "gpu", "--json")
    try:
        assert guard.stdout is not None
        lead = json.loads(guard.stdout.readline())
        assert lead["kind"] == "lead", lead
        assert "times the estimate of a migration to gpu" in lead["message"], lead
        assert "20s (SLURM's signal to save)" in lead["message"], lead
    finally:
        guard.kill()
        guard.communicate()
    guard = start_midstream("--fleet", fleet, "--guard", "r", "--to", "gpu", "--guard-lead", "1h", "--json")
    try:
        events: list[dict] = []
        assert guard.stdout is not None
        for line in guard.stdout:
            events.append(json.loads(line))
            if events[-1].get("kind") == "finished":
                break
        assert trains_again(target)
        assert target.fence.owner == "gpu"
        assert midstream("--fleet", fleet, "--stop", "r").code == 0
        output, errors = guard.communicate(timeout=120)
    finally:
        guard.kill()
    events += [json.loads(line) for line in output.splitlines()]
    assert guard.returncode == 0, (errors, events)
    assert events[0]["message"].endswith("r is handed on 1h00 before it: as --guard-lead gives it"), events
    assert "reaches its time limit in" in events[1]["message"], events
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"


def test_guard_restarts_job_on_its_own_cluster(lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster) -> None:
    flags = ["--nodes=1", "--time=30", "--signal=TERM@20"]
    fleet, _, there = fleet_file(lab, slurm_cluster, cluster=flags, other=[*flags, "--partition=high"])
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "cluster", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    run = runs(there, "r")
    run.wait_step(5)
    job = json.loads((Path(run.paths.attempt(1).dir) / "slurm.json").read_text())["job"]
    words = ["--guard", "r", "--to", "cluster,other", "--guard-lead", "1h", "--tries", "1", "--json"]
    guard = start_midstream("--fleet", fleet, *words)
    try:
        events: list[dict] = []
        assert guard.stdout is not None
        for line in guard.stdout:
            events.append(json.loads(line))
            if events[-1].get("kind") == "restarted":
                break
    finally:
        guard.kill()
        _, errors = guard.communicate()
    assert [event.get("kind") for event in events] == ["lead", "lost", "restarting", "restarted"], (events, errors)
    assert slurm_cluster.wait_state(job, "COMPLETED") == "COMPLETED"
    before = run.status(1)
    assert before is not None
    assert before.state == records.STOPPED
    run.wait(
        lambda run: run.attempt == 2 and (now := run.status()) is not None and now.step > before.step + 5, "trains"
    )
    assert (run.fence.epoch, run.fence.owner) == (1, "cluster"), "a restart is no migration"
    assert records.MigrationLock.held_or_none(run.paths.migration_lock) is None
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert run.rows(2)[0]["global_step"] == before.step, "no step is repeated"

    # To another target of the same login node it is a migration, which copies nothing.
    words[3] = "other"
    guard = start_midstream("--fleet", fleet, *words)
    try:
        events = []
        assert guard.stdout is not None
        for line in guard.stdout:
            events.append(json.loads(line))
            if events[-1].get("kind") == "finished":
                break
    finally:
        guard.kill()
        _, errors = guard.communicate()
    assert [event.get("kind") for event in events] == ["lead", "lost", "migrating", "finished"], (events, errors)
    assert (run.fence.epoch, run.fence.owner, run.attempt) == (2, "other", 3)
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0


def settings_of(run: Run) -> dict[str, Any]:
    """Return the run's configuration without what each attempt has of its own."""
    config: dict[str, Any] = yaml.safe_load(Path(run.paths.config).read_text())
    config["trainer"].pop("distributed")
    return config


def test_run_migrates_between_targets_of_one_login_node(
    lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster
) -> None:
    fleet, _, there = fleet_file(lab, slurm_cluster, cluster=["--nodes=1"], wide=["--nodes=2"])
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "cluster", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    run = runs(there, "r")
    run.wait_step(5)
    job = json.loads((Path(run.paths.attempt(1).dir) / "slurm.json").read_text())["job"]
    words = ["--migrate", "r", "--to", "wide", "--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json"]
    refused(midstream("--fleet", fleet, *words), 2, "wide has the root of login", "--mode cold")
    refused(midstream("--fleet", fleet, "--migrate", "r", "--to", "cluster"), 2, "r is already on cluster", "--guard r")

    moved = midstream("--fleet", fleet, *words, "--mode", "cold")
    assert moved.code == 0, (moved.stdout[-3000:], moved.stderr)
    assert claims(moved.result) == CERTIFIED
    [plan] = moved.of("plan")
    assert plan["route"]["probed"] == "none: source and target read the same directory of login"
    assert slurm_cluster.wait_state(job, "COMPLETED") == "COMPLETED"
    status = run.status()
    assert status is not None
    assert (status.attempt, status.epoch, status.processes, len(status.devices)) == (2, 2, 2, 4)
    assert run.fence.owner == "wide"
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert run.rows(2)[0]["global_step"] == moved.result["certificate"]["step"], "no step is repeated"

    # Back, and before its healthy steps again to where it came from: its steps on the target are given up.
    words = ["--migrate", "r", "--to", "cluster", "--mode", "cold", "--yes", "--certify-steps", "4", "--json"]
    config = settings_of(run)
    assert config["trainer"]["per_device_parallelism"] != 4
    more = ["--healthy-steps", "15000", "--", "--trainer.per_device_parallelism", "4"]
    moving = start_midstream("--fleet", fleet, *words, *more)
    try:
        assert moving.stdout is not None
        migration, certified = "", False
        for line in moving.stdout:
            event = json.loads(line)
            migration = migration or event.get("migration", "") or event.get("identity", {}).get("migration", "")
            certified = certified or event.get("phase") == "certify"
            if certified and event.get("phase") == "finish":
                break
        sealed = run.fence.sealed_step
        assert sealed is not None
        run.wait(lambda run: bool(run.rows(3)) and run.rows(3)[-1]["global_step"] > sealed + 10, "steps on the target")
        assert settings_of(run)["trainer"]["per_device_parallelism"] == 4
        rolled = midstream("--fleet", fleet, "--rollback", migration, "--yes")
        assert rolled.code in (0, 1), (rolled.stdout, rolled.stderr)
        moving.communicate(timeout=120)
    finally:
        moving.kill()
    run.wait(lambda run: run.attempt == 4 and (now := run.status()) is not None and now.step > sealed + 5, "trains")
    status = run.status()
    assert status is not None
    assert (run.fence.owner, run.fence.epoch, status.processes) == ("wide", 4, 2)
    assert settings_of(run) == config, "not that of the target"
    assert run.rows(4)[0]["global_step"] == sealed, "from the sealed step, not from what the target has saved"
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0


def test_target_without_known_devices_is_refused(
    lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster
) -> None:
    fleet, here, _ = fleet_file(lab, slurm_cluster, some=["--nodes=1-2"], wrong=["--nodes=9"])
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "gpu", "--run-id", "r", "--", *TRAINING).code == 0
    runs(here, "r").wait_step(2)
    some = midstream("--fleet", fleet, "--migrate", "r", "--to", "some", "--dry-run")
    refused(some, 2, "target some: --nodes=1-2 is not one number", "sbatch: [--nodes=2")
    wrong = midstream("--fleet", fleet, "--migrate", "r", "--to", "wrong", "--dry-run")
    assert wrong.code != 0
    assert "Requested node configuration is not available" in wrong.stderr
    assert midstream("--fleet", fleet, "--stop", "r").code == 0


def test_requeued_engine_supersedes_one_that_goes_on(
    lab: Lab, runs: Callable[..., Run], slurm_cluster: SlurmCluster
) -> None:
    """A node whose slurmd hangs is set down: the job starts elsewhere, and its first engine trains on."""
    fleet, _, there = fleet_file(lab, slurm_cluster, cluster=["--nodes=1"])
    flags = (*SLOWER, "--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 10}]")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "cluster", "--run-id", "r", "--", *flags)
    assert launched.code == 0, launched.stderr
    run = runs(there, "r")
    run.wait_step(25)
    first = run.status()
    assert first is not None
    job = json.loads((Path(run.paths.attempt(1).dir) / "slurm.json").read_text())["job"]
    node = slurm_cluster.run("squeue", "--noheader", "--jobs", job, "--format", "%N").strip()
    slurm_cluster.hang(node)
    try:
        slurm_cluster.set_down(node)
        slurm_cluster.wait_state(job, "PENDING")
        run.wait_step(first.step + 10)  # its processes live
        refused(midstream("--fleet", fleet, "--launch", TINY, "--on", "cluster", "--run-id", "r"), 2, "run r")
        slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        log = Path(run.paths.attempt(1).log(0))
        # It reads the fence at a boundary, or at its next commit.
        says = ("this start ends at step", "a later start has replaced start 1")
        run.wait(lambda _: any(word in log.read_text() for word in says), "the first engine ends itself", 400)
    finally:
        slurm_cluster.revive(node)
    restored = run.fence.starts[-1]["step"]
    run.wait(
        lambda run: (now := run.status()) is not None and now.start == 2 and now.step > restored + 30, "trains", 400
    )
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    committed = [run.manifest(name) for name in run.checkpoints()]
    assert {each.start for each in committed} == {1, 2}
    assert all((each.start == 1) == (each.step <= restored) for each in committed), "the first engine committed later"
    rows = [row["global_step"] for row in run.rows(1)]
    assert set(range(max(rows) + 1)) <= set(run.spliced()), "no step is missing"
    assert run.fence.order == (1, 2)
