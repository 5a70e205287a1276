"""Restored copies of a participant, and a suspended process, with real engines: one lineage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from simulators.sshd import Lab, SshServer
from support.command_line import Ended, Run, ended, midstream, start_midstream
from support.migrations.real_migrations import assert_one_lineage, kill_operator, launched, newest_migration

# Loaded by the interpreter of a migration's process, which waits minutes for a lost connection otherwise.
IMPATIENT = """
import dataclasses
import sys

if "midstream.migrate.migration_process" in sys.orig_argv:
    from midstream.migrate import executor

    executor.MIGRATION = dataclasses.replace(executor.MIGRATION, total_time=1.0)
"""
MIGRATE = ("--migrate", "r", "--to", "two", "--mode", "cold", "--json")


class Hosts:
    """Run "r" on "one", which answers, and on "two", behind a server that can be stopped."""

    def __init__(self, lab: Lab, runs: Callable[..., Run]) -> None:
        one = lab.local("one", devices=1)
        self.two: SshServer = lab.host("two", devices=1)
        self.fleet = lab.fleet_file(one=one, two=self.two.config)
        self.roots = {"one": Path(one.root), "two": self.two.root}
        self.runs = {name: runs(root, "r") for name, root in self.roots.items()}
        self.state = Path(os.environ["MIDSTREAM_STATE"])
        launched(self.fleet, self.runs["one"], "one")

    def suspended(self) -> tuple[subprocess.Popen[str], MigrationDirectory, int]:
        """Start a migration to "two"; suspend its process between the seal and the relaunch."""
        before = set(migration_ids())
        follower = start_midstream("--fleet", self.fleet, *MIGRATE, "--healthy-steps", "2")
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            for directory in map(MigrationDirectory, set(migration_ids()) - before):
                events = read_events(directory.journal_file)
                if any("the source is sealed" in event.message for event in events):
                    pid = int((directory.path / ".lock").read_text())
                    os.kill(pid, signal.SIGSTOP)
                    assert not started(directory), "it was suspended too late"
                    return follower, directory, pid
            time.sleep(0.005)
        pytest.fail("the source was not sealed")

    def running(self) -> list[str]:
        """Return the hosts that have an engine of their own; a copied history has the status of another host's."""

        def is_own(run: Run) -> bool:
            status = run.status()
            command = Path(f"/proc/{status.pid}/cmdline") if status is not None else None
            return command is not None and command.exists() and run.paths.root in command.read_text()

        return [name for name, run in self.runs.items() if run.attempt and run.running and is_own(run)]

    def assert_not_running(self, name: str) -> None:
        assert name not in self.running(), f"{name} trains beside the other host"


def started(directory: MigrationDirectory) -> bool:
    lines = directory.journal_file.read_text().splitlines()
    return any('"relaunching": true' in json.dumps(json.loads(line)) for line in lines)


def restore(copy: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(copy, place, symlinks=True)


@pytest.fixture
def hosts(lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    return Hosts(lab, runs)


@pytest.mark.slow
def test_restored_state_directory_rolls_nothing_back(hosts: Hosts, tmp_path: Path) -> None:
    """It was copied between seal and relaunch; the target trains and does not answer.

    On the old code the journal's silence counted, and the source trained beside the target.
    """
    follower, directory, pid = hosts.suspended()
    copy = tmp_path / "copy"
    shutil.copytree(hosts.state, copy, symlinks=True)
    os.kill(pid, signal.SIGCONT)
    hosts.runs["two"].wait(lambda run: run.attempt >= 2 and bool(run.rows(2)), "the target's first row")
    kill_operator(directory)
    ended(follower)
    restore(copy, hosts.state)
    hosts.two.stop()
    for consent in ((), ("--yes",)):
        done = midstream("--fleet", hosts.fleet, "--rollback", directory.migration, *consent, "--json")
        hosts.assert_not_running("one")
        assert done.code == 4, (done.stdout, done.stderr)
        assert done.result["outcome"] == "rollback incomplete", done.result
        assert "two" in done.result["message"]
    assert hosts.running() == ["two"]
    hosts.two.start()
    done = midstream("--fleet", hosts.fleet, "--continue", directory.migration, "--json")
    assert done.code in (0, 1), (done.stdout, done.stderr)
    assert len(hosts.running()) == 1, done.result
    assert_one_lineage(hosts.runs[hosts.running()[0]])


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["kept", "restored"])
def test_restored_disk_of_a_former_source_starts_nothing(hosts: Hosts, tmp_path: Path, memory: str) -> None:
    """It was copied before a completed migration; the target trains and does not answer.

    On the old code the launch warned and started a second engine.
    """
    source = hosts.runs["one"]
    stopped = midstream("--fleet", hosts.fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    source.wait(lambda run: not run.running, "its end")
    shutil.copytree(hosts.roots["one"] / "runs" / "r", tmp_path / "disk", symlinks=True)
    shutil.copytree(hosts.state, tmp_path / "state", symlinks=True)
    moved = midstream("--fleet", hosts.fleet, *MIGRATE, "--healthy-steps", "1")
    assert moved.code == 0, (moved.stdout, moved.stderr)
    restore(tmp_path / "disk", hosts.roots["one"] / "runs" / "r")
    if memory == "restored":
        restore(tmp_path / "state", hosts.state)
    hosts.two.stop()
    done = launch(hosts)
    hosts.assert_not_running("one")
    assert done.code in (2, 3), (done.stdout, done.stderr)
    if memory == "restored":
        assert done.code == 3, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("midstream: ")
    assert "two" in line
    assert hosts.running() == ["two"]


def launch(hosts: Hosts) -> Ended:
    config = hosts.runs["one"].paths.config  # its own: another one is refused before its owner is looked at
    return midstream("--fleet", hosts.fleet, "--launch", config, "--on", "one", "--run-id", "r", "--json")


@pytest.mark.slow
def test_suspended_process_starts_nothing_after_a_rollback(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another copy of the state directory rolls back while the migration's process is suspended.

    On the old code only files that changed beside it stopped the process.
    """
    follower, directory, pid = hosts.suspended()
    other = tmp_path / "another"
    shutil.copytree(hosts.state, other, symlinks=True)
    original = os.environ["MIDSTREAM_STATE"]
    monkeypatch.setenv("MIDSTREAM_STATE", str(other))
    done = midstream("--fleet", hosts.fleet, "--rollback", directory.migration, "--yes", "--json")
    assert done.code == 0, (done.stdout, done.stderr)
    assert hosts.running() == ["one"]
    monkeypatch.setenv("MIDSTREAM_STATE", original)
    os.kill(pid, signal.SIGCONT)
    assert ended(follower, 240) != 0
    result = [event for event in read_events(newest_migration().journal_file) if event.event == "result"][-1]
    assert hosts.running() == ["one"], result
    assert not list(Path(hosts.runs["two"].paths.attempts).glob("*/launch*")), "an attempt was started on the target"
    fence = hosts.runs["two"].fence
    assert (fence.epoch, fence.owner) == (3, "one"), "its fence refuses a process that was suspended"
    assert_one_lineage(hosts.runs["one"])
