"""Saving of a state: snapshot, write, commit.

The snapshot copies from device to host, the write hashes in threads, and the commit is under the fence,
with the manifest last.

The training loop waits only for :func:`begin_save`, which takes the snapshot.
"""

from __future__ import annotations

from midstream_core.attempt import save_fence as fences
from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import MANIFEST, Manifest, RunPaths, checkpoint_name
from midstream_engine.array_types import PyTree
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.saving.checkpoint_writer import (
    Document,
    removed_on_failure,
    reported,
    stored_bytes,
    write,
    write_objects,
)
from midstream_engine.checkpoint.saving.commit import commit
from midstream_engine.checkpoint.saving.consensus import finish_with_consensus
from midstream_engine.checkpoint.saving.device_copy import DevicePart
from midstream_engine.checkpoint.saving.save_group import SaveGroup, check_owners
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, release, snapshot
from midstream_engine.checkpoint.stores import in_bucket, open_store
from midstream_engine.checkpoint.stores.hashed_objects import Discard


class PendingSave:
    """A snapshot that is not written yet. Any thread may finish it.

    ``on_devices``: a part of it is a copy in the memory of devices.
    """

    def __init__(
        self,
        paths: RunPaths,
        arrays: list[HostArray],
        document: Document,
        *,
        step: int,
        attempt: int,
        epoch: int,
        start: int = 0,
        group: SaveGroup | None = None,
    ) -> None:
        self.step = step
        self.bytes = stored_bytes(arrays)
        self.on_devices = any(isinstance(piece, DevicePart) for array in arrays for _, piece in array.pieces)
        self._paths, self._arrays, self._document = paths, arrays, document
        self._attempt, self._epoch, self._start, self._group = attempt, epoch, start, group

    def finish(self) -> Manifest:
        """Write and commit, once; return the manifest when it is durable.

        Releases the snapshot's memory.

        A complete checkpoint is never overwritten: saving the same state again returns the existing manifest. A partial
        checkpoint of the same name is replaced. In a bucket, where another process might use it, objects with the same
        content are kept, and an object with other content ends the save.

        Raises:
            FenceRejectedError: The fence does not accept (epoch, step); it may have changed since `begin_save`.
            CheckpointFullError: There is no room. What was written is removed, older checkpoints stay.
            CheckpointError: Another state already has this name.
            Exception: What the function that returns ``train.json`` raises. What was written is removed.
        """
        arrays, self._arrays = self._arrays, []
        try:
            return self._finish(arrays)
        finally:
            release(arrays)  # also where an error refers to them

    def _finish(self, arrays: list[HostArray]) -> Manifest:
        # A bucket has no lock: the manifest of a superseded start may arrive late, and must not take this one's name.
        start = self._start if in_bucket(self._paths.checkpoints) else 0
        directory = self._paths.checkpoint(checkpoint_name(self.step, self._attempt, start))
        if self._group is not None and self._group.count > 1:
            document = self._document() if callable(self._document) else self._document
            return finish_with_consensus(
                self._paths, directory, arrays, document, self._group,
                step=self.step, attempt=self._attempt, epoch=self._epoch, start=self._start,
            )  # fmt: skip
        with reported(directory, self.bytes):
            exists = open_store(directory).exists(MANIFEST)
        if exists:
            return _already_saved(directory, arrays, self._document)
        with removed_on_failure(directory, self.bytes):
            written = write(directory, arrays, self._document)
            return commit(
                self._paths, directory, written,
                step=self.step, attempt=self._attempt, epoch=self._epoch, start=self._start,
            )  # fmt: skip


def begin_save(  # noqa: PLR0913  step, attempt, epoch and start identify a checkpoint
    paths: RunPaths,
    tree: PyTree,
    document: Document,
    *,
    step: int,
    attempt: int,
    epoch: int,
    start: int = 0,
    copy: Copy = Copy.HOST,
    group: SaveGroup | None = None,
) -> PendingSave:
    """Take the snapshot of ``tree``, to be finished on another thread. Writes nothing.

    Args:
        paths: The run.
        tree: Pytree of the arrays.
        document: ``train.json``, see :func:`train_document`; or a function that returns it, called by
            `PendingSave.finish` once the arrays are written.
        step: Number of updates done.
        attempt: Number of the attempt.
        epoch: The epoch that commits.
        start: The start of that epoch that commits.
        copy: Where the state is copied. NONE: it does not change until the save is finished. DEVICES: finishing the
            save fetches it.
        group: The processes that together have the state; each begins and finishes the same save.

    Raises:
        FenceRejectedError: The fence does not accept (epoch, step, start).
        CheckpointError: The state is spread over processes that are not in ``group``.
        ValueError: An array has a dtype that the format does not have.
    """
    fences.check(paths, epoch, step, start)
    arrays = snapshot(tree, copy)
    try:
        if group is not None and group.count > 1:
            check_owners(arrays)
        elif spread := [array.name for array in arrays if array.parts_by_process is not None]:
            raise CheckpointError(f"{spread[0]} is spread over several processes, and the save has only this one")
    except CheckpointError:
        release(arrays)
        raise
    return PendingSave(paths, arrays, document, step=step, attempt=attempt, epoch=epoch, start=start, group=group)


def _already_saved(directory: str, arrays: list[HostArray], document: Document) -> Manifest:
    """Return the existing manifest if it is of this state."""
    manifest = read_manifest(directory)
    digest = write_objects(Discard(), arrays, document).root_digest
    if digest != manifest.root_digest:
        raise CheckpointError(
            f"{directory} is complete and has another state (root digest {manifest.root_digest[:12]}, "
            f"this one is {digest[:12]}): a checkpoint is never overwritten"
        )
    return manifest
