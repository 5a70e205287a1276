"""Checkpoint that an attempt of another trainer starts from, and its evidence."""

from __future__ import annotations

from typing import Optional, Tuple

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_host.driver import recorded_checkpoints, work_directory
from midstream_host.driver.attempt_place import AttemptPlace
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_finder import saved_state
from midstream_host.driver.run_file import RunFile


def find_origin(place: AttemptPlace, command: Optional[records.Command]) -> "Tuple[Optional[str], Optional[str]]":
    """Return name and expected root digest of the checkpoint to start from.

    None for a new run. A later start of an epoch continues where the fence has closed the one before.

    Raises RecordError where the sealed checkpoint is missing.
    """
    paths = place.paths
    since = [manifest for manifest in recorded_checkpoints.usable(paths) if manifest.epoch == place.epoch]
    if place.start > 1 and since:
        return since[-1].name, since[-1].root_digest
    if command is not None and command.action in records.STARTS and command.checkpoint:
        return command.checkpoint, command.root_digest
    usable = recorded_checkpoints.usable(paths)
    if usable:
        return usable[-1].name, usable[-1].root_digest
    fence = save_fence.read_fence(paths)
    if fence is not None and fence.sealed_step is not None:
        raise records.RecordError(
            "run {} was migrated at step {}, and that checkpoint is missing".format(paths.run_id, fence.sealed_step)
        )
    return None, None


def why_complete(run: RunFile, restored: work_directory.PlacedCheckpoint) -> str:
    """Return what shows that nothing is left to train after a checkpoint; else empty.

    Where the run file states ``steps``, they decide: a run may be prolonged.
    """
    if run.steps:
        return "step {} of {}".format(restored.step, run.steps) if restored.step >= run.steps else ""
    try:
        final = saved_state(run.checkpoints.rule, restored.path).final
    except (IncompleteError, OSError, ValueError):  # it says nothing of that
        return ""
    return "step {}, the last one by its checkpoint".format(restored.step) if final else ""


def write_evidence(
    place: AttemptPlace,
    restored: work_directory.PlacedCheckpoint,
    name: str,
    expected: Optional[str],
    devices: int,
    seconds: float,
) -> None:
    """Write the evidence of what the trainer is started from.

    Args:
        place: The attempt.
        restored: The checkpoint's files as they were placed.
        name: Name of the checkpoint.
        expected: Root digest that the command names; None: it names none.
        devices: Devices of the attempt.
        seconds: Seconds that placing the files took.

    Raises:
        MismatchError: The files have another root digest.
    """
    for digest in (restored.recorded, expected):
        if digest is not None and restored.root_digest != digest:
            hint = " (hint: {} is damaged; move it away to continue from the checkpoint before it)".format(
                place.paths.checkpoint(name)
            )
            raise work_directory.MismatchError(
                "{} has root digest {}, expected is {}; the trainer is not started{}".format(
                    name, restored.root_digest, digest, hint if digest == restored.recorded else ""
                )
            )
    divided = restored.divided or work_directory.Divided(0, 0, {})
    records.Restore(
        checkpoint=name,
        step=restored.step,
        root_digest=restored.root_digest,
        expected_root_digest=expected or restored.recorded,
        recorded_losses=[],
        recomputed_losses=[],
        losses_error=0.0,
        batch_digest="",
        recorded_batch_digest="",
        devices=devices,
        seconds={"restore": seconds},
        divided_from=divided.before,
        divided_over=divided.after,
        divided_digests=divided.digests,
    ).write(place.files.restore)
