"""`--metrics RUN --system` on this machine and an unreachable host."""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, LocalHostConfig, SshHostConfig
from midstream.headless import metrics_and_log
from midstream.headless.show_system import show_system
from midstream.hosts.host_pool import HostPool
from midstream.output import Output
from midstream.watch import system_series
from midstream_core import records
from pages.json_lines import problem_of
from support.run_directory import RunDirectory


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """A local host with a run that has logged steps, and a host that does not answer."""
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.status(1, records.TRAINING, 3)
    rows = [{"global_step": step, "train/loss": 1.0, "time": time.time() - 100 + step} for step in range(3)]
    run.text(1, "".join(json.dumps(row) + "\n" for row in rows))
    lost = SshHostConfig(address="nobody@127.0.0.1:1")
    return Fleet(hosts={"here": LocalHostConfig(root=str(tmp_path), devices=2), "lost": lost})


def test_points_of_the_runs_hosts_are_printed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(system_series, "TIERS", ((1.0, 180), (30.0, 360)))
    hosts = HostPool(fleet)
    try:
        for as_json in (True, False):
            assert show_system(hosts, ["run"], 6, Output(as_json=as_json)) == 0
    finally:
        hosts.close()
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert lines
    for line in lines:
        assert problem_of(line) == ""
        assert (line["event"], line["run"], line["host"], line["global_step"]) == ("system", "run", "here", 2)
        assert 0 <= line["cpu"] <= 1
        assert line["memory"] > 0
    assert [line["time"] for line in lines] == sorted({line["time"] for line in lines}), "each point once"
    texts = [line for line in printed if not line.startswith("{")]
    assert texts
    assert all("  here  step 2  cpu " in line and " MB/s" in line for line in texts)


def test_unknown_run_and_a_chart_of_system_metrics_are_refused(fleet: Fleet) -> None:
    hosts = HostPool(fleet)
    try:
        with pytest.raises(UsageError, match="no run 'absent'"):
            show_system(hosts, ["absent"], 1, Output(as_json=True, data=io.StringIO()))
    finally:
        hosts.close()
    options = argparse.Namespace(metrics="run", plot="x.svg", system=15)
    with pytest.raises(UsageError, match="--plot and --system exclude each other"):
        metrics_and_log.metrics(fleet, options, Output(as_json=True))
