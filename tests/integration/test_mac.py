"""A Mac as the operator's machine, simulated: without /proc and without what only Linux has. Hosts are Linux."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.sshd import SSHD, Lab
from support.command_line import TINY, Run, midstream, refused
from support.engines.stopped_run import write_stopped_run
from support.paths import REPOSITORY
from support.run_directory import RunDirectory
from support.tui.terminal import Terminal

pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd")
SIMULATED = REPOSITORY / "tests/simulators/mac"


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a Mac for every program that the test starts; return the file with what it used of Linux."""
    notes = tmp_path / "mac.txt"
    monkeypatch.setenv("PYTHONPATH", str(SIMULATED))
    monkeypatch.setenv("MIDSTREAM_SIMULATED_MAC", str(notes))
    return notes


def uses(notes: Path) -> list[str]:
    """Return what was used of Linux; the simulation has to have changed a process."""
    lines = notes.read_text().splitlines()
    assert any(line.startswith("process") for line in lines), "the simulation was not loaded"
    return [line for line in lines if line.startswith("used") and "/proc/cpuinfo" not in line]


def test_simulation_hides_linux(mac: Path) -> None:
    code = "import os, sys; print(sys.platform, hasattr(os, 'splice'), os.path.exists('/proc/self'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["darwin", "False", "False"]
    assert uses(mac) == ["used /proc/self"]


@pytest.mark.drawn
@pytest.mark.system
def test_status_metrics_costs_and_a_plan_between_two_hosts(lab: Lab, mac: Path) -> None:
    one, two = lab.host("mac-one", devices=2), lab.host("mac-two", devices=2)
    write_stopped_run(one.root, "nano", "one")
    fleet = lab.fleet_file(one=one.config, two=two.config)
    status = midstream("--fleet", fleet, "--status", "--json")
    assert status.code == 0, status.stderr
    assert [host["link"] for host in status.of("host")] == ["live", "live"]
    assert [run["run"] for run in status.of("run")] == ["nano"]
    assert len(midstream("--fleet", fleet, "--metrics", "nano", "--json").of("metrics")) == 8
    assert midstream("--fleet", fleet, "--cost").code == 0
    plan = midstream("--fleet", fleet, "--migrate", "nano", "--to", "two", "--dry-run", "--json")
    assert plan.code == 0, plan.stderr
    [planned] = plan.of("plan")
    assert (planned["route"]["source"], planned["route"]["target"]) == ("one", "two")
    assert {"install", "downtime", "certify"} <= planned["estimate"]["duration"].keys()
    assert plan.of("check"), "the preflight ran on both hosts"
    assert {check["state"] for check in plan.of("check")} <= {"pass", "warn"}, plan.stdout
    assert midstream("--fleet", fleet, "--doctor").code in (0, 1)
    assert uses(mac) == []


def test_hosts_of_type_local_and_the_demo_need_linux(mac: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path}/root}}\n")
    status = midstream("--fleet", fleet, "--status")
    assert status.code == 0
    assert "type: local needs Linux" in status.stdout
    refused(midstream("--fleet", fleet, "--launch", TINY, "--on", "here", "--yes"), 1, "type: local needs Linux")
    refused(midstream("--demo", "--headless"), 2, "the demo needs Linux")
    assert uses(mac) == []


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux")
def test_terminal_ui(lab: Lab, mac: Path, tmp_path: Path) -> None:
    host = lab.host("mac-three", devices=2)
    RunDirectory(host.root, "nano").rows(1, *range(20))
    fleet = lab.fleet_file(three=host.config)
    terminal = Terminal(tmp_path)
    environment = {
        "PYTHONPATH": str(SIMULATED),
        "MIDSTREAM_SIMULATED_MAC": str(mac),
        "MIDSTREAM_STATE": str(tmp_path / "state"),
    }
    try:
        terminal.start([sys.executable, "-m", "midstream", "--fleet", str(fleet)], environment)
        terminal.wait(lambda screen: "nano" in screen and "1 live" in screen, "the run", timeout=120)
        terminal.press("Enter")
        terminal.wait(lambda screen: "train/loss" in screen, "its curve", timeout=120)
        terminal.press("q")
        assert terminal.wait_exit(120)[0] == 0
    finally:
        terminal.close()
    assert uses(mac) == []


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("route", ["auto", "relay"])
def test_migration_between_two_hosts(route: str, lab: Lab, runs: Callable[..., Run], mac: Path) -> None:
    source, target = lab.host(f"mac-source-{route}", devices=2), lab.host(f"mac-target-{route}", devices=4)
    configs = {
        "source": source.config,
        "target": replace(target.config, copy_route=None if route == "auto" else route),
    }
    fleet = lab.fleet_file(**configs)
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "source", "--run-id", "m", "--yes")
    assert launched.code == 0, launched.stderr
    runs(source.root, "m").wait_step(10)
    moved = midstream(
        "--fleet", fleet, "--migrate", "m", "--to", "target", "--mode", "cold", "--certify-steps", "4",
        "--healthy-steps", "4", "--yes", "--json", timeout=500,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr
    assert moved.result["ok"]
    assert midstream("--fleet", fleet, "--stop", "m").code in (0, 2)  # 2: the run has finished by itself
    assert uses(mac) == []
