"""Restart of a SLURM job: what refuses it before the stop, and the submission after it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import ConnectionLostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.install.errors import LaunchError
from midstream.migrate.failover import job_restart
from midstream.watch.snapshot import RunView
from midstream_core import records

STATUS = records.Status(state=records.TRAINING, step=9, process=0, boot_id="b", pid=1, start_ticks=1, heartbeat=1.0)
RUN = RunView("r", "login", records.Fence(1, "cluster"), None, 1, STATUS, True)


class Cluster:
    """A login node that answers from these fields, and records what is done to the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fence, self.attempt, self.running = records.Fence(1, "cluster"), 1, True
        self.lock: records.MigrationLock | None = None
        self.newest = 0  # the running attempt after the stop
        self.ended = records.STOPPED
        self.answers: list[Exception | int] = [2]  # to each submission
        self.done: list[str] = []
        self.root, self.name = "/root", "login"
        self.fleet = Fleet()
        for name in ("query_allocation", "prepare_target", "stop_run", "launch_run"):
            monkeypatch.setattr(job_restart, name, getattr(self, name))
        monkeypatch.setattr(job_restart, "SUBMIT_INTERVAL", 0.0)

    def get(self, _name: str) -> Cluster:
        return self

    def call(self, function: Any) -> Any:
        answers = {
            "describe": SimpleNamespace(running=self.running, attempt=self.attempt, fence=self.fence),
            "migration_lock": self.lock,
            "running_attempt": self.newest,
        }
        return lambda **_: answers[function.__name__]

    def query_allocation(self, *_: Any) -> None:
        self.done.append("flags")

    def prepare_target(self, *_: Any) -> None:
        self.done.append("install")

    def stop_run(self, *_: Any, timeout: float) -> Any:
        self.done.append("stop")
        return dataclasses.replace(STATUS, state=self.ended, step=12)

    def launch_run(self, *_: Any, agreed: bool = False) -> Any:
        self.done.append("submit")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(number=answer)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    targets = "targets:\n  cluster: {type: slurm, host: login, sbatch: [--nodes=1]}\n"
    return parse_fleet(f"hosts:\n  login: {{type: local, root: {tmp_path}}}\n{targets}")


def restart(fleet: Fleet, cluster: Cluster) -> int:
    cluster.fleet = fleet
    return job_restart.restart(cast("Any", cluster), RUN, "cluster")


def test_restart_checks_and_installs_before_it_stops(fleet: Fleet, cluster: Cluster) -> None:
    assert restart(fleet, cluster) == 2
    assert cluster.done == ["flags", "install", "stop", "submit"]


@pytest.mark.parametrize(
    "changed",
    [{"running": False}, {"attempt": 2}, {"fence": records.Fence(2, "lab")}],
    ids=["stopped by its user", "started again", "migrated"],
)
def test_restart_leaves_a_run_that_changed(fleet: Fleet, cluster: Cluster, changed: dict[str, Any]) -> None:
    vars(cluster).update(changed)
    with pytest.raises(MidstreamError, match="attempt 1 of r does not run on cluster any more"):
        restart(fleet, cluster)
    assert cluster.done == []


@pytest.mark.parametrize(
    ("epoch", "seconds", "refused"),
    [(2, 60.0, True), (2, -60.0, False), (1, 60.0, False)],
    ids=["valid", "expired", "of the epoch that has begun"],
)
def test_restart_respects_migration_lock(
    fleet: Fleet, cluster: Cluster, epoch: int, seconds: float, refused: bool
) -> None:
    cluster.lock = records.MigrationLock("r-m", epoch, "lab", time.time() + seconds)
    if refused:
        with pytest.raises(MidstreamError, match="locked for lab by migration r-m"):
            restart(fleet, cluster)
    else:
        assert restart(fleet, cluster) == 2
    assert ("stop" in cluster.done) != refused


def test_submission_repeats_until_cluster_accepts(fleet: Fleet, cluster: Cluster) -> None:
    cluster.answers = [ConnectionLostError("login", "timed out"), LaunchError("sbatch: Socket timed out"), 2]
    assert restart(fleet, cluster) == 2
    assert cluster.done.count("submit") == 3
    assert cluster.done.count("stop") == 1


def test_submission_whose_answer_was_lost_is_found(fleet: Fleet, cluster: Cluster) -> None:
    cluster.newest = 2
    assert restart(fleet, cluster) == 2
    assert "submit" not in cluster.done


def test_submission_that_is_never_accepted_says_how_to_continue(
    fleet: Fleet, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_restart, "SUBMIT_TIMEOUT", -1.0)
    cluster.answers = [LaunchError("sbatch: QOSMaxSubmitJobPerUserLimit")]
    with pytest.raises(MidstreamError, match=r"stopped at step 12.*QOSMaxSubmitJobPerUserLimit") as found:
        restart(fleet, cluster)
    assert found.value.hint == "midstream --restart r"


def test_run_that_another_started_is_not_started_twice(fleet: Fleet, cluster: Cluster) -> None:
    cluster.answers = [UsageError("run r is running on lab (attempt 3)")]
    with pytest.raises(UsageError, match="running on lab"):
        restart(fleet, cluster)
    assert cluster.done.count("submit") == 1


def test_run_that_finished_is_not_submitted(fleet: Fleet, cluster: Cluster) -> None:
    cluster.ended = records.FINISHED
    assert restart(fleet, cluster) == 0
    assert "submit" not in cluster.done
