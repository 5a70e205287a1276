"""The first checkpoint of a run that has saved nothing yet: a rehearsal needs one."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.journal.facts import required
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.record_commands import show_command
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_host.runs import ownership, run_state

SAVE_TIMEOUT = 900.0  # seconds


def request_save(migration: Migration) -> None:
    """Command the source to save and continue: the run has no checkpoint yet."""
    plan, source = migration.plan, migration.source
    attempt = source.call(run_state.running_attempt)(root=source.root, run_id=plan.run_id)
    if not attempt:
        return
    # Its epoch is the one that this migration begins: the lock of the one before, which may just have ended, is older.
    command = records.Command(records.SAVE, epoch=plan.epoch, migration=plan.migration)
    sequence = source.call(ownership.send_command)(
        root=source.root, run_id=plan.run_id, attempt=attempt, command=command.to_json()
    )
    migration.log_command(
        source,
        f"command: save and continue, for the rehearsal (attempt {attempt})",
        shows=show_command(migration.source_paths, attempt),
    )
    before: list[str] = []

    def answered(run: RunView) -> bool:
        status = run.status
        if run.attempt != attempt or status is None or run.state in records.ENDED or run.state == "lost":
            return True
        if not before:
            before.append(status.message)
        failed = bool(status.message) and status.message != before[0] and status.state == records.TRAINING
        return status.acknowledged >= sequence or failed

    if plan.trainer is not None:
        _wait_for_trainer(migration, attempt, sequence)
        return
    run = wait_for(migration, "the source's save", source.name, answered, SAVE_TIMEOUT)
    if run.status is not None and run.status.acknowledged < sequence and run.status.message:
        raise MidstreamError(
            f"{source.name} cannot save the state to migrate: {run.status.message}",
            f"fix that on {source.name} and migrate again; the run keeps training",
        )


def _wait_for_trainer(migration: Migration, attempt: int, sequence: int) -> None:
    """Wait for the first checkpoint of another trainer.

    No command makes it write one.

    Raises:
        MidstreamError: It has written none.
    """
    trainer, source = required(migration.plan.trainer, "trainer"), migration.source

    def saved(run: RunView) -> bool:
        ended = run.attempt != attempt or run.state in records.ENDED or run.state == "lost"
        return (
            ended
            or any(checkpoint.complete for checkpoint in run.checkpoints)
            or (run.status is not None and run.status.acknowledged >= sequence)
        )

    timeout = min(SAVE_TIMEOUT, trainer.wait)
    try:
        wait_for(migration, f"the first checkpoint of {trainer.name}", source.name, saved, timeout)
    except MidstreamError as error:
        if type(error) is not MidstreamError:  # a request to roll back, or a lost machine
            raise
        hint = "it saves when it is stopped: --mode cold" if trainer.saves_on_signal else "migrate after its first one"
        raise MidstreamError(f"nothing to rehearse on: {error.message}", hint) from None
