"""When a migrated run counts as healthy."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.migrate.host_group import HostGroup, target_of
from midstream.migrate.journal import migration_directory
from midstream.migrate.phases.finish import DECISION_POLL, NEAR, Finish, losses_are_lost
from midstream.migrate.steps.migration import Migration, RollbackRequested
from support.migrations.sample_plan import PLAN
from support.run_directory import RunDirectory

NAN, INFINITY = math.nan, math.inf


def curve(*losses: float) -> list[dict[str, Any]]:
    """Return rows of steps from 0 on, of which those from 3 on are the target's."""
    return [{"global_step": step, "train/loss": loss, "attempt": 1 + (step >= 3)} for step, loss in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "lost"),
    [
        ((2.0, 2.0, 2.0, 1.9, 1.9), False),
        ((2.0, 2.0, 2.0, NAN, 1.9), False),
        ((2.0, 2.0, 2.0, NAN, INFINITY), True),
        ((2.0, NAN, 2.0, NAN), True),
        ((NAN, NAN, NAN, NAN, NAN), False),
        ((2.0, 2.0, 2.0), False),
    ],
)
def test_losses_without_a_number_on_the_target_alone(losses: tuple[float, ...], lost: bool) -> None:
    assert losses_are_lost(curve(*losses), 3) == lost


def test_newest_losses_count() -> None:
    rows = curve(2.0, 2.0, 2.0, *[1.9] * 5, *[NAN] * NEAR)
    assert losses_are_lost(rows, 3)
    assert not losses_are_lost(rows[:-1], 3)
    assert not losses_are_lost([{"global_step": 0}, {"global_step": 5}], 3)


def test_pin_that_cannot_be_removed_does_not_prevent_the_end(tmp_path: Path) -> None:
    """As on a disk that has become read-only; here a directory has the name, which root cannot unlink."""
    run = RunDirectory(tmp_path / "a", "r")
    Path(run.paths.pins, "m.json", "x").mkdir(parents=True)
    fleet = Fleet({"a": LocalHostConfig(root=str(tmp_path / "a"))})
    hosts, notes = HostPool(fleet), list[str]()
    group = HostGroup(hosts, target_of(fleet, "", ("a",)), "r", "")
    migration = SimpleNamespace(source_group=group, plan=PLAN, note=notes.append)
    try:
        Finish._unpin(cast(Migration, migration))
    finally:
        hosts.close()
    (note,) = notes
    assert note.endswith("; the pin of its checkpoint stays on a")


def test_open_question_about_a_rollback_holds_the_end() -> None:
    """On the old code the migration finished behind the open dialog, and the user's answer came too late."""
    directory = migration_directory.create(PLAN, "hosts: {}\n")
    notes = list[str]()
    migration = Migration.__new__(Migration)
    migration.directory, migration.phase, migration.note = directory, "finish", notes.append  # type: ignore[method-assign]
    Finish._await_decision(migration)
    assert notes == [], "no dialog is open"

    release = directory.hold()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(Finish._await_decision, migration)
        with pytest.raises(TimeoutError):
            ending.result(5 * DECISION_POLL)
        directory.request_rollback()
        release()
        with pytest.raises(RollbackRequested):
            ending.result(60)
    assert notes == ["waits: its user decides whether to roll it back"]


def test_end_of_the_asking_process_ends_the_hold(tmp_path: Path) -> None:
    directory = migration_directory.create(PLAN, "hosts: {}\n")
    program = f"""
import time
from midstream.migrate.journal.migration_directory import MigrationDirectory
release = MigrationDirectory({directory.migration!r}).hold()
print("held", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "held\n"
        assert directory.is_held()
        asking.kill()
    assert not directory.is_held()
