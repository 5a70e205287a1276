"""Commit a checkpoint: write its manifest, last, while the fence accepts it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence

from midstream_core.attempt import save_fence as fences
from midstream_core.attempt.errors import CheckpointError
from midstream_core.json_types import list_or_empty
from midstream_core.records import FORMAT, FORMAT_VERSION, MANIFEST, Manifest, RunPaths, SpreadHost, locked
from midstream_engine.checkpoint.saving.checkpoint_writer import Written
from midstream_engine.checkpoint.stores import bucket_fence, in_bucket, open_store


def commit(  # noqa: PLR0913  step, attempt, epoch and start identify a checkpoint
    paths: RunPaths,
    directory: str,
    written: Written,
    *,
    step: int,
    attempt: int,
    epoch: int,
    start: int = 0,
    hosts: Sequence[SpreadHost] = (),
    host: str = "",
) -> Manifest:
    """Write the manifest while the fence accepts it: the objects become a checkpoint.

    Args:
        paths: The run.
        directory: Directory or URL of the checkpoint.
        written: The objects.
        step: Number of updates done.
        attempt: Number of the attempt.
        epoch: The epoch that commits.
        start: The start of that epoch that commits.
        hosts: Of a checkpoint on several hosts, all of them.
        host: Name of this host among ``hosts``.

    Returns:
        The manifest.

    Raises:
        FenceRejectedError: The fence does not accept this step of this epoch, or the start is superseded.
        CheckpointError: Another process has committed a checkpoint of this name.
    """
    manifest = Manifest(
        format=FORMAT,
        version=FORMAT_VERSION,
        run_id=paths.run_id,
        step=step,
        attempt=attempt,
        epoch=epoch,
        created=time.time(),
        root_digest=written.root_digest,
        arrays=[dict(vars(entry)) for entry in written.arrays],  # to_json makes slow deep copies
        objects=[dict(vars(entry)) for entry in written.objects],
        hosts=[entry.to_json() for entry in hosts],
        host=host,
        start=start,
        numbered=in_bucket(directory),
    )
    with locked(paths.lock):
        fence = fences.check(paths, epoch, step, start)
        if in_bucket(directory):
            bucket_fence.check_fence(paths, fence, epoch, step, start)
        store = open_store(directory)
        try:
            store.commit(MANIFEST, manifest_text(manifest))
        except FileExistsError as error:
            raise CheckpointError(f"{directory}: another process has committed it; it is not overwritten") from error
    with contextlib.suppress(CheckpointError):  # the checkpoint is saved; --verify lists what else is there
        store.tidy([entry.path for entry in written.objects])
    return manifest


def manifest_text(manifest: Manifest) -> bytes:
    """Return the bytes of ``manifest.json``, with one array or object per line."""
    lines: list[str] = []
    for key, value in vars(manifest).items():
        text = json.dumps(value, allow_nan=False)
        entries = list_or_empty(value)
        if entries:
            text = "[\n  " + ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in entries) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
