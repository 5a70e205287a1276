"""The lead before a SLURM job's time limit: estimated, given, reported."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, SlurmTarget
from midstream.fleet.fleet_file import parse_fleet
from midstream.launch.slurm_job import seconds_to_save
from midstream.migrate.failover import job_restart, time_limit
from midstream.migrate.failover.time_limit import TimeLimit, migration_lead, restart_lead
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from midstream_host.runs.slurm import Allocation, JobState

FLEET = """
hosts:
  login: {{type: local, root: {root}/login}}
  lab: {{type: local, root: {root}/lab}}
  away: {{type: local, root: {root}/away}}
targets:
  cluster: {{type: slurm, host: login, sbatch: [--nodes=1, "--signal=TERM@200"]{more}}}
  other: {{type: slurm, host: login, sbatch: [--nodes=1]}}
  far: {{type: slurm, host: away, sbatch: [--nodes=1, --gpus-per-node=1]}}
"""
NOW = 1.8e9
STAGES = {"lab": {"install": 30.0, "downtime": 70.0}, "far": {"install": None, "downtime": 70.0}}


def fleet_of(root: Path, more: str = "") -> Fleet:
    return parse_fleet(FLEET.format(root=root, more=more))


def run_view(owner: str = "cluster", state_bytes: int = 4_000_000_000) -> RunView:
    status = records.Status(state=records.TRAINING, step=9, process=0, boot_id="b", pid=1, start_ticks=1,
                            heartbeat=1.0, state_bytes=state_bytes)  # fmt: skip
    return RunView("r", "login", records.Fence(1, owner), None, 1, status, True)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plans with known estimates, and a stopped clock; return the targets that were planned."""
    requests: list[str] = []

    def make_plan(_hosts: Any, _snapshot: Any, request: Any) -> Any:
        requests.append(request.target)
        if request.target not in STAGES:
            raise MidstreamError("no answer")
        return SimpleNamespace(estimate=SimpleNamespace(duration=STAGES[request.target]))

    monkeypatch.setattr(time_limit.planner, "make_plan", make_plan)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic))
    later = Allocation(NOW + 500.0, "n1", "low", [])
    monkeypatch.setattr(time_limit, "query_allocation", lambda *_: later)
    return requests


def limit(fleet: Fleet, *targets: str, given: float | None = None, said: list[str] | None = None) -> TimeLimit:
    hosts = cast("Any", SimpleNamespace(get=lambda name: name))
    return TimeLimit(fleet, hosts, targets, given, ([] if said is None else said).append)


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        (["--nodes=1"], 300.0),
        (["--signal=TERM@50"], 50.0),
        (["--signal", "B:USR1@120"], 120.0),
        (["--signal=R:TERM@90", "--nodes=1"], 90.0),
        (["--signal=TERM"], 60.0),
    ],
)
def test_seconds_to_save_are_those_of_sbatch(flags: list[str], seconds: float) -> None:
    assert seconds_to_save(flags) == seconds


def test_lead_is_twice_estimate_before_signal(tmp_path: Path, planned: list[str]) -> None:
    lead = limit(fleet_of(tmp_path), "lab").find(Snapshot(1, 0.0), run_view())
    assert lead.seconds == 2 * 100.0 + 200.0 + 60.0
    assert lead.reason == (
        "2 times the estimate of a migration to lab (about 1m40) + 3m20 (SLURM's signal to save) + 60s to react"
    )
    assert planned == ["lab"]


def test_lead_is_that_of_slowest_target(tmp_path: Path, planned: list[str]) -> None:
    lead = limit(fleet_of(tmp_path), "lab", "far", "cluster").find(Snapshot(1, 0.0), run_view())
    # 70 s and 500 s in the queue, twice; one stage unknown; the signal; to react.
    assert lead.seconds == 2 * 570.0 + 900.0 + 200.0 + 60.0
    assert "migration to far (at least 70s, with install unknown)" in lead.reason
    assert "the wait in its queue (8m" in lead.reason
    assert "15m00 for each unknown stage" in lead.reason
    assert planned == ["lab", "far"], "a restart on the job's own target is not planned"


def test_lead_of_own_target_is_a_save(tmp_path: Path, planned: list[str]) -> None:
    small = limit(fleet_of(tmp_path), "cluster").find(Snapshot(1, 0.0), run_view(state_bytes=0))
    large = limit(fleet_of(tmp_path), "cluster").find(Snapshot(1, 0.0), run_view(state_bytes=40_000_000_000))
    assert 260.0 < small.seconds < 280.0
    assert large.seconds - small.seconds == pytest.approx(2 * 40e9 / 400e6)
    assert "a save on cluster" in small.reason
    assert planned == []


def test_lead_that_is_given_is_not_estimated(tmp_path: Path, planned: list[str]) -> None:
    fleet = fleet_of(tmp_path, ", guard_lead: 45m")
    by_file = limit(fleet, "lab").find(Snapshot(1, 0.0), run_view())
    by_flag = limit(fleet, "lab", given=90.0).find(Snapshot(1, 0.0), run_view())
    assert (by_file.seconds, by_file.reason) == (2700.0, "guard_lead of target cluster")
    assert (by_flag.seconds, by_flag.reason) == (90.0, "as --guard-lead gives it")
    assert planned == []
    with pytest.raises(UsageError, match=r"targets.cluster.guard_lead: duration 'soon' is malformed"):
        fleet_of(tmp_path, ", guard_lead: soon")


def test_lead_without_plan_is_an_hour_and_says_why(tmp_path: Path, planned: list[str]) -> None:
    lead = limit(fleet_of(tmp_path), "away").find(Snapshot(1, 0.0), run_view())
    assert (lead.seconds, lead.planned) == (3600.0, False)
    assert "away: no answer" in lead.reason


def test_notice_begins_with_the_lead_and_says_it_once(tmp_path: Path, planned: list[str]) -> None:
    said: list[str] = []
    watched = limit(fleet_of(tmp_path), "lab", said=said)

    def notice(left: float, state: str = "RUNNING") -> str:
        ends = NOW + left if left else 0.0
        return watched.notice(Snapshot(1, 0.0), run_view(), JobState("7", state, "", NOW, ends))

    assert notice(0.0) == ""
    assert notice(100.0, "PENDING") == ""
    assert (planned, said) == ([], []), "a job without an end is not planned for"
    assert notice(3000.0) == ""  # an hour would have been too early
    assert notice(500.0) == ""
    assert notice(450.0).startswith("job 7 reaches its time limit in 7m")
    [line] = said
    assert "r is handed on 7m40 before it: 2 times the estimate of a migration to lab" in line
    assert planned == ["lab"], "one estimate for some minutes"
    reserved = JobState("7", "RUNNING", "", NOW, NOW + 450, reservation="soon")
    assert watched.notice(Snapshot(1, 0.0), run_view(), reserved).startswith("job 7 reaches the end of its reservation")


@pytest.mark.parametrize(("owner", "own"), [("cluster", ["cluster"]), ("other", ["other"]), ("lab", [])])
def test_own_target_is_that_of_the_fence(tmp_path: Path, owner: str, own: list[str]) -> None:
    fleet = fleet_of(tmp_path)
    found = [name for name in fleet.target_names if job_restart.is_own_target(fleet, run_view(owner), name)]
    assert found == own


def test_leads_add_up_without_fleet() -> None:
    assert migration_lead("t", {"copy": 10.0}, 60.0).seconds == 2 * 10.0 + 60.0 + 60.0
    assert restart_lead("t", 10.0, 60.0).seconds == 2 * 10.0 + 60.0 + 60.0
    assert seconds_to_save(SlurmTarget("login").sbatch) == 300.0
