"""Migrations whose operator is killed, and whose files are damaged."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from simulators.sshd import Lab
from support.command_line import Run, ended, midstream, start_midstream
from support.migrations.real_migrations import assert_one_lineage, kill_operator, launched, newest_migration, two_hosts


def wait_journaled(word: str, follower: subprocess.Popen[str], timeout: float = 300.0) -> MigrationDirectory:
    """Wait until the newest migration's journal has a line with ``word``."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = newest_migration()
            if word in directory.journal_file.read_text() and directory.is_locked():
                return directory
        if follower.poll() is not None:
            pytest.fail(f"it ended before {word!r}: {follower.communicate()}")
        time.sleep(0.002)
    pytest.fail(f"{word!r} was not journaled within {timeout} s")


def killed_after(word: str, lab: Lab, runs: Callable[..., Run], mode: str) -> tuple[MigrationDirectory, Path, Run, Run]:
    """Start a migration and kill its process once the journal contains ``word``."""
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one")
    follower = start_midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", mode, "--yes", "--healthy-steps", "8"
    )
    directory = wait_journaled(word, follower)
    kill_operator(directory)
    assert ended(follower) == 4
    return directory, fleet, source, target


@pytest.mark.slow  # a complete migration; test_migrate_damaged_files.py has the parts
def test_continue_without_plan_and_fleet_file(lab: Lab, runs: Callable[..., Run]) -> None:
    directory, fleet, source, target = killed_after('"sealed"', lab, runs, "warm")
    directory.plan_file.write_text("[]")
    directory.fleet_file.unlink()
    shown = midstream("--fleet", fleet, "--status")
    assert f"midstream --continue {directory.migration}" in shown.stdout
    assert "plan.json expected an object, found a list; fleet.yaml is missing" in shown.stdout

    again = midstream("--continue", directory.migration)
    assert again.code == 0, again.stderr
    assert "plan.json expected an object, found a list: restored from the journal" in again.stderr
    assert "fleet.yaml is missing: restored from the journal" in again.stderr
    view = directory.view()
    assert (view.state, view.damage) == ("completed", ())
    assert view.certificate is not None
    assert view.certificate.valid
    assert target.running
    assert not source.running
    assert_one_lineage(target)


@pytest.mark.slow
def test_rollback_without_journal(lab: Lab, runs: Callable[..., Run]) -> None:
    directory, fleet, source, target = killed_after('"sealed"', lab, runs, "warm")
    step = directory.view().sealed_step
    assert step is not None
    directory.journal_file.unlink()
    assert "journal.jsonl is missing" in midstream("--fleet", fleet, "--status").stdout

    back = midstream("--rollback", directory.migration, "--yes", "--json")
    assert back.code == 0, back.stderr
    assert back.result["outcome"] == "rolled back"
    source.wait(lambda run: run.attempt > 1 and run.running, "the source's new attempt")
    source.wait_step(step + 2)
    assert source.rows(source.attempt)[0]["global_step"] == step, "it continues at the sealed step"
    assert not target.running
    assert source.fence.epoch == 3
    assert_one_lineage(source)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cold", "warm"])
@pytest.mark.parametrize("word", ["relaunching", "target_attempt", '"certify"'])
def test_continue_after_journal_loss_in_later_phase(word: str, mode: str, lab: Lab, runs: Callable[..., Run]) -> None:
    directory, _, source, target = killed_after(word, lab, runs, mode)
    directory.journal_file.write_bytes(b"")
    again = midstream("--continue", directory.migration, "--json")
    assert again.code == 0, again.stderr
    assert again.result["outcome"] == "completed"
    assert not source.running
    assert target.running
    assert source.handed_over == target.handed_over
    assert_one_lineage(target)
    attempts = [name for name in os.listdir(target.paths.attempts) if int(name) >= 2]
    assert len(attempts) <= 2, "no second engine was started beside a running one"
