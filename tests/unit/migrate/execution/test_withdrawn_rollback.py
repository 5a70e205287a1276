"""Rollbacks that no user has requested: they give up nothing that the target has done since the seal."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.errors import Exit, MidstreamError
from midstream.migrate import executor
from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import begun_rollback, read_events
from midstream.migrate.phases.certify import NotCertifiedError
from midstream.migrate.phases.relaunch import Relaunch
from midstream.migrate.phases.seal import _refuse_started_since
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.target_progress import refuse_lost_seal
from midstream_core import records
from support.migrations.sample_plan import changed
from support.run_directory import RunDirectory, write_checkpoint
from unit.migrate.execution.test_executor import Step, carry_out, migration, raising, unsealed

__all__ = ["migration"]  # the fixture


def begins_to_roll_back(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, error: MidstreamError
) -> tuple[Step, Path]:
    """Have an automatic rollback stay incomplete; return the phase that failed, and what it failed at."""
    migration.journal.record(Facts(relaunching=True, target_attempt=2))
    lock = Path(migration.source_paths.dir, "migration_lock.json")
    kept = lock.read_text()
    lock.write_text("{partial")
    failing = Step(phase_names.RELAUNCH, raising(error))
    with monkeypatch.context() as patched:
        patched.setattr(executor, "_may_go_on", lambda _: False)  # it shows nothing yet
        assert carry_out(migration, patched, failing) == Exit.INTERRUPTED
    assert migration.directory.view().state == migration_state.ROLLBACK_INCOMPLETE
    lock.write_text(kept)
    return failing, lock


def saves(tmp_path: Path, step: int) -> None:
    """Have the target's attempt end after a save of its own."""
    there = RunDirectory(tmp_path / "b", "r")
    there.fence(2, "b", 7)
    records.Command(records.RESTORE, 2, migration="m").write(there.attempt(2).command_file)
    there.checkpoint(step, 2, 2)


def test_incomplete_rollback_gives_up_no_steps(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the old code the process that continued it gave the target's steps up; now the migration goes on."""
    failing, _ = begins_to_roll_back(migration, monkeypatch, MidstreamError("b: no space left on device"))
    saves(tmp_path, 11)
    assert carry_out(migration, monkeypatch, failing) == Exit.INTERRUPTED
    view = migration.directory.view()
    assert (view.state, view.phase, view.rolled_back) == (migration_state.INTERRUPTED, phase_names.RELAUNCH, False)
    assert "b has done steps 8 to 11 of r, which a rollback gives up" in view.error
    assert "midstream --continue m" in view.error
    assert "midstream --rollback m --yes goes back to step 7 on a" in view.error
    assert begun_rollback(read_events(migration.directory.journal_file)) is None
    assert records.Fence.read(migration.target_paths.fence).epoch == 2
    assert carry_out(migration, monkeypatch, failing) == Exit.DONE, "it goes on"


def test_requested_rollback_gives_the_steps_up(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing, _ = begins_to_roll_back(migration, monkeypatch, MidstreamError("b: no space left on device"))
    saves(tmp_path, 11)
    migration.directory.request_rollback(agreed=True)
    carry_out(migration, monkeypatch, failing)
    assert migration.directory.view().state == migration_state.ROLLED_BACK


def test_failed_certificate_gives_the_steps_up(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps that the target did from a state that is not the source's are no part of the run."""
    failing, _ = begins_to_roll_back(migration, monkeypatch, NotCertifiedError("another state"))
    saves(tmp_path, 11)
    assert carry_out(migration, monkeypatch, failing) == Exit.NOT_CERTIFIED
    assert migration.directory.view().state == migration_state.ROLLED_BACK


def test_rollback_needs_the_sealed_checkpoint(
    migration: Migration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Retention had removed it from a bucket: the target was closed, and no host could train."""
    migration.journal.record(Facts(relaunching=True, target_attempt=2, source_was_running=True))
    saves(tmp_path, 11)
    migration.directory.request_rollback(agreed=True)
    carry_out(migration, monkeypatch, Relaunch(), rollback=True)
    view, fence = migration.directory.view(), records.Fence.read(migration.target_paths.fence)
    assert "a has no complete checkpoint of step 7 any more, and b has step 11 of r" in view.error
    assert (view.state, fence.epoch) == (migration_state.INTERRUPTED, 2)
    assert not migration.directory.rollback_requested()
    write_checkpoint(migration.source_paths, 7)
    refuse_lost_seal(migration)


@pytest.mark.parametrize("state", ["failed", "lost"])
def test_source_that_runs_again_is_not_sealed_at_the_plan(tmp_path: Path, state: str) -> None:
    """A job was requeued after the plan: on the old code what it saved at the stop was given up."""
    migration = unsealed(tmp_path)
    migration.plan = changed(migration.plan, checkpoint="step-7-a001", source_state=state)
    with pytest.raises(MidstreamError, match="did not run on a when this was planned"):
        _refuse_started_since(migration)
    migration.plan = changed(migration.plan, source_state=records.TRAINING)
    _refuse_started_since(migration)
