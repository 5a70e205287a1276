"""A process in another container of a shared root: a start waits for it, and no reader counts it as ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.install.errors import LaunchError
from midstream.launch.process_lease import wait_for_lease
from midstream.migrate.failover.run_verdict import UNREACHABLE, Verdict, judge
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from midstream_host.runs import record_repair, run_state, unknown_process
from midstream_host.runs.unknown_process import is_unknown
from support.checkpoints.trees import SOURCES

LEASE = 6.0  # seconds; four heartbeats
ENGINE = f"""
import sys, time; sys.path[:0] = {SOURCES!r}
from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
files = records.RunPaths(sys.argv[1], "run").attempt(1)
records.this_process().write(files.launched())
status = StatusFile(files.status(), run_id="run", attempt=1, epoch=1, num_train_steps=9, host="other")
status.update(state=records.TRAINING)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process with the engine's status in a pid namespace of its own."""
    os.makedirs(records.RunPaths(str(tmp_path), "run").attempt(1).dir)
    prefix = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", ENGINE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def host_of(root: Path) -> LocalHost:
    return LocalHost("here", LocalHostConfig(root=str(root)), runs_engines=True)


def test_start_is_refused_while_the_other_container_writes(container: subprocess.Popen[str], tmp_path: Path) -> None:
    files = records.RunPaths(str(tmp_path), "run").attempt(1)
    assert not run_state.status_of(files, 0).running, "it is not found here"
    assert is_unknown(files, 0)
    said: list[str] = []
    with pytest.raises(LaunchError, match="attempt 1 of run runs on other: its files change"):
        wait_for_lease(host_of(tmp_path), "run", said.append, LEASE)
    assert "cannot prove that it has ended" in said[0]
    container.send_signal(signal.SIGKILL)
    container.wait(30)
    began = time.monotonic()
    wait_for_lease(host_of(tmp_path), "run", said.append, LEASE)
    assert time.monotonic() - began >= LEASE


def test_other_boot_proves_an_end_on_the_same_machine_only() -> None:
    here = records.this_process()
    assert here.machine, "this machine has an id"
    before = records.ProcessIdentity("another boot", here.pid, here.start_ticks, here.machine, here.namespace)
    assert records.has_ended(before, 0.0), "the machine has started again since"
    assert not records.has_ended(before, time.time()), "its heartbeat is newer than this boot: another machine's"
    other = records.ProcessIdentity("another boot", here.pid, here.start_ticks, "other", here.namespace)
    assert not records.has_ended(other, 0.0)
    assert not records.has_ended(records.ProcessIdentity("another boot", 1, 1), 0.0), "a record without a machine"
    assert records.has_ended(records.ProcessIdentity(here.boot_id, here.pid, 1), 0.0)
    assert not records.has_ended(here, 0.0)


def test_its_state_is_unknown_until_its_lease_expires(
    container: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet({"here": LocalHostConfig(root=str(tmp_path))})
    hosts = HostPool(fleet)
    try:
        snapshot = take_snapshot(hosts)
    finally:
        hosts.close()
    (run,) = snapshot.copies("run")
    assert (run.state, run.running) == ("unknown", False)
    assert run.remark == "its process was started on other, and nothing proves that it runs or has ended"
    assert judge(snapshot, "run")[1] == Verdict(UNREACHABLE, f"here: {run.remark}")
    (attempt,) = record_repair.evidence(str(tmp_path), "run").attempts
    assert re.fullmatch(r"process 0 had a heartbeat on other \d+ s ago", attempt.running)
    monkeypatch.setattr(unknown_process, "LEASE", LEASE)
    lease, files = unknown_process.UnknownProcessLease(), records.RunPaths(str(tmp_path), "run").attempt(1)
    assert lease.host(files) == "other"
    container.send_signal(signal.SIGKILL)
    container.wait(30)
    assert lease.host(files) == "other", "its end is not proven yet"
    until = time.monotonic() + 10 * LEASE
    while lease.host(files) and time.monotonic() < until:
        time.sleep(0.1)
    assert not lease.host(files)
    assert replace(run, unproven="").state == "lost"
