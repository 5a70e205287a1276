"""One run on a real Slurm cluster: its attempts, what is seen of them, and what has to hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from midstream.headless.status import run_rows
from midstream.launch import host_group_start
from midstream.launch.attempt_monitor import stop_run
from midstream.launch.start_attempt import Launch
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream_core import records
from midstream_host.runs import job_remark, run_state, slurm
from support.engines.committing_engine import Commits
from support.slurm.slurm_setting import FLAGS, Setting

DEADLINE = 60.0  # seconds for a job to get anywhere


@dataclass
class SlurmRun:
    """A run of a case."""

    setting: Setting
    run_id: str = ""
    attempt: int = 0
    job: str = ""
    signals_may_miss: bool = False  # SLURM may have a step of an earlier start
    hung: set[str] = field(default_factory=set[str])  # nodes whose slurmd hung while an earlier start ran there
    commits: Commits = field(init=False)

    def __post_init__(self) -> None:
        self.setting.count += 1
        self.run_id = f"r{self.setting.count}"
        self.root = self.setting.hosts.get("login").root
        self.paths = records.RunPaths(self.root, self.run_id)
        self.commits = Commits(self.paths)
        self.cluster = self.setting.cluster

    def launch(self, target: str) -> None:
        """Submit the next attempt through the login node."""
        launch = Launch(self.run_id, target, config_text="a: 1\n")
        fleet, hosts = self.setting.fleet, self.setting.hosts
        if FLAGS[target][-1:] == ["--reservation=soon"]:
            where = ("ReservationName=soon", "StartTime=now", "Duration=1", "Users=root", "Nodes=n3")
            self.cluster.run("scontrol", "create", "reservation", *where)
        self.attempt = host_group_start.start(hosts, fleet.target(target), launch).number
        record = json.loads(Path(self.paths.attempt(self.attempt).dir, slurm.JOB).read_text())
        self.job = record["job"]

    def look(self) -> run_state.ProcessState:
        """Return the attempt's state by files and by what Slurm answers now."""
        slurm.forget()
        found = run_state.status(self.root, self.run_id, self.attempt)
        self.commits.notice(found.status)
        return found

    def wait(
        self, reached: Callable[[records.Status, bool], Any], what: str, seconds: float = DEADLINE
    ) -> records.Status:
        """Wait until the attempt's state is as expected, and return its status."""
        end = time.monotonic() + seconds
        while True:
            found = self.look()
            if found.status is not None and reached(found.status, found.running):
                return found.status
            assert time.monotonic() < end, f"{what}: {found}, job {self.cluster.state(self.job)}\n{self.output()}"
            time.sleep(0.1)

    def output(self) -> str:
        """Return the ends of the job's output and of the engine's log."""
        directory = Path(self.paths.attempt(self.attempt).dir)
        return "".join(
            file.read_text()[-600:] for file in (directory / "job.txt", directory / "log-0.txt") if file.exists()
        )

    def trains(self, start: int = 0) -> records.Status:
        """Wait until a start from ``start`` on has trained some steps and committed one of them."""
        first = self.wait(lambda at, _: at.state == records.TRAINING and at.start >= start, "trains")
        return self.wait(lambda at, _: at.step > first.step + 12, "makes steps")

    def refuses_another(self) -> None:
        """Assert that the attempt counts as running, and that no second one can be started."""
        found = self.look()
        assert found.running, f"{found}, job {self.cluster.state(self.job)}"
        slurm.forget()
        with pytest.raises(Exception, match=r"runs here already|its files change"):
            self.launch("plain")

    def remark(self) -> str:
        """Return what is said of the attempt's job."""
        return job_remark.remark(self.paths.attempt(self.attempt), self.look().status)

    def is_known(self) -> bool:
        """Whether the controller has the job: one that was killed may have lost it."""
        return self.cluster.state(self.job) != ""

    def is_ended_by_earlier_script(self) -> bool:
        """Whether SLURM has taken the end of an earlier start's script for that of the present one.

        It does where the present start is on the same node, which hung in between (SLURM 22.05).
        """
        status = self.look().status
        return status is not None and status.host in self.hung and self.cluster.state(self.job) == "FAILED"

    def stop(self) -> None:
        """Stop the run as ``--stop`` does."""
        stop_run(self.setting.hosts, "login", self.run_id, self.attempt, DEADLINE)
        status = self.look().status
        assert status is not None
        assert status.state == records.STOPPED, status

    def has_reason(self) -> None:
        """Assert that `--status` has a reason for the run's end."""
        rows = run_rows(fleet_snapshot(self.setting.hosts, remember=False))
        [row] = [row for row in rows if row[0] == self.run_id]
        assert row[2] not in (records.TRAINING, "empty"), row
        assert row[-1] not in ("", "-"), row

    def start_now(self) -> None:
        """Let a requeued job start without its delay of two minutes.

        SLURM sets the delay when the earlier start's node has cleaned up: what is changed before has no effect.
        """
        waiting, end = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"), time.monotonic() + DEADLINE
        self.cluster.wait_state(self.job, *waiting)
        while self.cluster.state(self.job) in waiting:
            assert time.monotonic() < end, f"job {self.job} does not start: {self.output()}"
            self.cluster.run("scontrol", "release", self.job, check=False)
            self.cluster.run("scontrol", "update", f"JobId={self.job}", "StartTime=now", check=False)
            time.sleep(1)
