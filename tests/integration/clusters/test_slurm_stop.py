"""Stops of runs on a real Slurm cluster that loses jobs, signals and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, SlurmTarget
from midstream.hosts.host_pool import HostPool
from midstream.install.errors import NotStoppingError
from midstream.launch import stop_request
from midstream.launch.attempt_monitor import stop_run
from midstream_core import records
from midstream_host.runs import slurm
from simulators.clusters.slurm_cluster import why_not
from support.slurm.slurm_run import SlurmRun
from support.slurm.slurm_setting import Setting, opened

pytestmark = [
    pytest.mark.drawn,
    pytest.mark.system,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def setting() -> Iterator[Setting]:
    with opened() as made:
        yield made


@pytest.fixture
def run(setting: Setting) -> Iterator[SlurmRun]:
    made = SlurmRun(setting)
    yield made
    setting.cluster.cancel_all()


@pytest.mark.parametrize("known", [False, True], ids=["lost", "another job has its id"])
def test_engine_whose_job_slurm_does_not_have_is_stopped(run: SlurmRun, known: bool) -> None:
    run.launch("plain")
    run.trains()
    other = run.cluster.submit("sleep 600") if known else "99999"
    file = Path(run.paths.attempt(run.attempt).dir, slurm.JOB)
    file.write_text(json.dumps({**json.loads(file.read_text()), "job": other}))
    run.stop()
    status = run.look().status
    assert status is not None
    assert status.message == f"stopped by a command at step {status.step}, saved"
    if known:
        assert run.cluster.wait_state(other, "RUNNING", "CANCELLED") == "RUNNING", "the other job gets no signal"
    run.commits.check()


@pytest.mark.parametrize("mode", ["swallowed", "dead"])
def test_stop_needs_no_scheduler(run: SlurmRun, mode: str) -> None:
    run.launch("plain")
    run.trains()
    with run.setting.lost("scancel", mode):
        run.stop()
    run.commits.check()


def test_stop_without_an_effect_is_said_in_one_line(run: SlurmRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_request, "REPEAT_INTERVALS", (1.0,))
    run.launch("plain")
    run.trains()
    hosts = run.setting.hosts
    run.cluster.run("scancel", "--signal=STOP", run.job)
    run.cluster.wait_state(run.job, "STOPPED")
    expected = rf"^attempt 1 of {run.run_id} has not begun to stop after [2-9] requests in 5 s: process 0 on login"
    with run.setting.lost("scancel", "swallowed"), pytest.raises(NotStoppingError, match=expected):
        stop_run(hosts, "login", run.run_id, run.attempt, 5)
    run.stop()


@pytest.mark.slow
def test_late_engine_gets_the_signal_before_the_time_limit(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM sends it once, here before srun has begun."""
    login = replace(setting.fleet.hosts["login"], setup=["sleep 34"])
    fleet = Fleet({"login": login}, {"plain": SlurmTarget("login", ["--nodes=1", "--time=1", "--signal=TERM@20"])})
    hosts = HostPool(fleet)
    run = SlurmRun(replace(setting, fleet=fleet, hosts=hosts))
    try:
        run.launch("plain")
        status = run.wait(lambda at, _: at.state in records.ENDED, "is stopped", 120)
        assert status.state == records.STOPPED
        assert run.cluster.wait_state(run.job, "COMPLETED", "TIMEOUT") == "COMPLETED"
    finally:
        setting.cluster.cancel_all()
        hosts.close()
