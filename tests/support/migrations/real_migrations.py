"""Migrations of real engines: a run on the first of two hosts, and the process that migrates it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream

LONG = (*SLOWER, "--trainer.num_train_steps", "100000")


def two_hosts(lab: Lab, runs: Callable[..., Run], source: int, target: int) -> tuple[Path, Run, Run]:
    """Return the fleet file of the local hosts "one" and "two", and the copies of run "r" there.

    Args:
        lab: Makes the hosts.
        runs: Makes the runs.
        source: Devices of "one".
        target: Devices of "two".
    """
    one, two = lab.local("one", devices=source), lab.local("two", devices=target)
    return lab.fleet_file(one=one, two=two), runs(one.root, "r"), runs(two.root, "r")


def launched(fleet: Path, run: Run, target: str, *flags: str) -> None:
    """Launch ``run`` on ``target``, and wait for its fourth step."""
    done = midstream(
        "--fleet", fleet, "--launch", TINY, "--on", target, "--run-id", run.paths.run_id, "--", *LONG, *flags
    )
    assert done.code == 0, done.stderr
    run.wait_step(4)


def newest_migration() -> MigrationDirectory:
    """Return the directory of the newest migration."""
    return MigrationDirectory(migration_ids()[0])


def kill_operator(directory: MigrationDirectory) -> None:
    """Kill the migration's process."""
    pid = int((directory.path / ".lock").read_text())
    with contextlib.suppress(ProcessLookupError):  # it ended by itself a moment ago
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while directory.is_locked() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not directory.is_locked()


def assert_one_lineage(run: Run) -> None:
    """Assert that every step is there once in the accepted lineage."""
    spliced = run.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1))
