"""A standby that the rollback of its migration could not end."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from midstream.check.check_result import FAIL
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal import migration_directory as directories
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_state import INTERRUPTED, ROLLED_BACK
from midstream.migrate.planning import occupied_target
from midstream_core import records
from midstream_host.runs import slurm
from support.migrations.sample_plan import PLAN, changed
from support.run_directory import RunDirectory

MIGRATION = "20261126-101112-r-0001"


@pytest.mark.parametrize(
    ("outcome", "job", "state"),
    [
        (ROLLED_BACK, "", ""), (ROLLED_BACK, "17", "RUNNING"), (ROLLED_BACK, "17;other", "RUNNING"),
        (ROLLED_BACK, "17", ""), (INTERRUPTED, "", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_standby_of_an_ended_migration_is_ended_by_hand(
    outcome: str, job: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's process is on a compute node: on the login node its id is another process, or none."""
    for name, script in {"squeue": f"echo '{state}|None|1|N/A'", "sacct": "exit 1"}.items():
        file = tmp_path / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script if state else 'exit 1'}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_cached", {})
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    fleet = Fleet({name: LocalHostConfig(root=str(tmp_path / name)) for name in "ab"}, text="hosts: {}\n")
    run = RunDirectory(tmp_path / "b", "r")
    run.status(2, records.WAITING, 9)
    path = run.attempt(2).status()
    status = dataclasses.replace(records.Status.read(path), epoch=0)
    status.write(path)
    records.Command(records.STANDBY, epoch=2, migration=MIGRATION).write(run.attempt(2).command_file)
    if job:
        records.write_json(f"{run.attempt(2).dir}/{slurm.JOB}", {"job": job, "submitted": 17.0})
    if outcome:
        directory = directories.create(changed(PLAN, migration=MIGRATION), fleet.text)
        journal = Journal(directory.journal_file)
        journal.write("result", ok=False, exit_code=1, outcome=outcome)
        journal.close()
    hosts = HostPool(fleet)
    try:
        check = occupied_target.in_the_way(hosts.get("b"), fleet, "r", 2)
    finally:
        hosts.close()
    assert status.pid == os.getpid()
    assert (check.state, check.name) == (FAIL, "run is free")
    assert check.detail == f"attempt 2 of r is a standby on b for migration {MIGRATION}"
    if outcome == ROLLED_BACK:
        command = {
            ("", ""): f"kill {os.getpid()}", ("17", "RUNNING"): "scancel 17",
            ("17;other", "RUNNING"): "scancel --clusters other 17", ("17", ""): "",
        }[job, state]  # fmt: skip
        ended = "that migration has ended, and the standby exits within an hour"
        assert check.hint == ended + (f", or now by: {command}" if command else "")
    else:
        assert f"--rollback {MIGRATION} ends it" in check.hint
