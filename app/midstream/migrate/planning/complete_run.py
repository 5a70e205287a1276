"""Plan of a run of another trainer that has done all its steps."""

from __future__ import annotations

from midstream.errors import UsageError
from midstream.migrate.modes.mode import Mode
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.driver.run_file import RunFile


def complete_warning(run_id: str, mode: Mode, run: RunFile, checkpoint: ListedCheckpoint | None) -> tuple[str, ...]:
    """Warn that the trainer of a complete run is not started on the target.

    ``checkpoint``: the one to continue from; None: a later one.

    Raises:
        UsageError: A rehearsal is requested, and there is nothing left to train.
    """
    if checkpoint is None or not run.steps or checkpoint.step < run.steps:
        return ()
    what = f"{run_id} is complete, step {checkpoint.step} of {run.steps}"
    if mode.has_standby:
        raise UsageError(
            f"{what}: there is nothing to rehearse", "--mode cold copies it, and does not start the trainer"
        )
    return (f"{what}: its checkpoint is copied, and the trainer is not started",)
