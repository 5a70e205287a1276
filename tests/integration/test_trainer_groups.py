"""Runs of another trainer on a group of hosts."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, midstream, refused
from support.launched_processes import kill_launched
from support.trainers.script_runs import STEPS, check_curve, claims_of
from support.trainers.script_trainer import write_node_script

pytestmark = pytest.mark.drawn


@pytest.fixture
def pair(lab: Lab) -> Iterator[Path]:
    """Write a fleet file: hosts a and b, target ``pair``, have one root, as over NFS; ``one`` has its own."""
    root = str(lab.directory / "nfs")
    hosts = {name: dataclasses.replace(lab.host(name).config, root=root) for name in ("a", "b")}
    file = lab.fleet_file(one=lab.host("one").config, **hosts)
    file.write_text(f"{file.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b], shared_root: {root}}}}}\n")
    yield file
    kill_launched(lab.directory)


def states(run: Run, attempt: int) -> list[str]:
    """Return the states of both nodes of an attempt."""
    return [records.Status.read(run.paths.attempt(attempt).status(node)).state for node in (0, 1)]


def test_script_is_migrated_to_a_group_of_hosts_and_back(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", pair, "--launch", file, "--on", "one", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    alone, grouped = runs(lab.servers["one"].root, "r"), runs(str(lab.directory / "nfs"), "r")
    alone.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", pair, "--migrate", "r", "--yes", "--healthy-steps", "3", "--json", "--to")
    refused(midstream(*words, "pair", "--mode", "warm"), 2, "the rehearsal of script is on one host", "--mode cold")
    moved = midstream(*words, "pair", "--mode", "cold")
    assert moved.code == 0, moved.stderr
    assert claims_of(moved)["state"]["verdict"] == "verified"
    attempt = grouped.attempt
    assert states(grouped, attempt) == [records.TRAINING] * 2
    other = json.loads((Path(grouped.paths.dir) / "work" / "out" / "node-1.json").read_text())
    assert other["rank"] == "1"
    checkpoint = Path(other["argv"][other["argv"].index("--resume") + 1])
    assert checkpoint.name.startswith("ckpt-")
    assert checkpoint.is_relative_to(grouped.paths.dir)
    back = midstream(*words, "one", "--mode", "cold")
    assert back.code == 0, back.stderr
    assert states(grouped, attempt) == [records.STOPPED] * 2
    assert not os.path.exists(f"/proc/{other['pid']}")
    alone.kill()
    check_curve(alone, file, tmp_path / "straight")


def test_group_is_stopped_continued_and_ended_with_a_failed_node(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    grouped = runs(str(lab.directory / "nfs"), "r")
    other_node = Path(grouped.paths.dir) / "work" / "out" / "node-1.json"
    for number in (1, 2):
        launched = midstream("--fleet", pair, "--launch", file, "--on", "pair", "--run-id", "r")
        assert launched.code == 0, launched.stderr
        grouped.wait(
            lambda run, end=f"-a{number:03d}": (
                any(name.endswith(end) for name in run.checkpoints()) and other_node.exists()
            ),
            "a checkpoint and the other node",
        )
        if number == 1:
            stopped = midstream("--fleet", pair, "--stop", "r")
            assert stopped.code == 0, stopped.stderr
            assert states(grouped, 1) == [records.STOPPED] * 2
            assert not os.path.exists(f"/proc/{json.loads(other_node.read_text())['pid']}")
    os.kill(json.loads(other_node.read_text())["pid"], signal.SIGKILL)
    grouped.wait(lambda run: states(run, 2) == [records.FAILED] * 2, "the end of both")
    status = grouped.status()
    assert status is not None
    assert status.message.startswith("node 1 has failed: script ended by itself")
    rows = grouped.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert {row["attempt"] for row in rows.values()} == {1, 2}


def test_group_ends_with_the_driver_of_its_first_host(
    lab: Lab, pair: Path, runs: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_node_script(tmp_path / "code", steps=STEPS, every=25)
    grouped = runs(str(lab.directory / "nfs"), "r")
    assert midstream("--fleet", pair, "--launch", file, "--on", "pair", "--run-id", "r").code == 0
    other_node = Path(grouped.paths.dir) / "work" / "out" / "node-1.json"
    grouped.wait(lambda run: other_node.exists(), "the other node")
    grouped.kill()
    grouped.wait(lambda run: states(run, 1)[1] == records.FAILED, "the end of the other node")
    found = records.Status.read(grouped.paths.attempt(1).status(1))
    assert found.message == "the driver of node 0 was killed"
    assert not os.path.exists(f"/proc/{json.loads(other_node.read_text())['pid']}")
