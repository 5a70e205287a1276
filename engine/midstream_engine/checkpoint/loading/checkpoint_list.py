"""The list of a run's checkpoints. Reads manifests alone, needs no jax."""

from __future__ import annotations

from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.records import MANIFEST, Fence, RunPaths, parse_checkpoint_name
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.stores import open_checkpoints, open_store


def list_checkpoints(
    paths: RunPaths, fence: Fence | None = None, *, attempt: int | None = None
) -> list[ListedCheckpoint]:
    """Return every checkpoint directory of the run, by step, then attempt.

    Other names are skipped. ``attempt``: only those that it has saved; no manifest of another one is read. Without a
    ``fence`` every complete one is accepted.
    """
    checkpoints: list[ListedCheckpoint] = []
    for name in open_checkpoints(paths.checkpoints).names():
        key = parse_checkpoint_name(name)
        if key is not None and attempt in (None, key[1]):
            checkpoints.append(_listed(paths.checkpoint(name), name, *key, fence))
    return sorted(checkpoints, key=lambda entry: entry.order)


def _listed(directory: str, name: str, step: int, attempt: int, fence: Fence | None) -> ListedCheckpoint:
    flaw = ""
    if open_store(directory).exists(MANIFEST):
        try:
            manifest = read_manifest(directory)
            if manifest.name == name:
                accepted = fence is None or fence.accepts(manifest.epoch, manifest.step, manifest.start)
                return ListedCheckpoint(
                    name, step, attempt, True, accepted, manifest.size, manifest.created, manifest.root_digest,
                    manifest.epoch, start=manifest.start,
                )  # fmt: skip
            flaw = f"{directory}: its manifest is that of {manifest.name}"
        except CheckpointCorruptError as error:
            flaw = str(error)
    return ListedCheckpoint(name, step, attempt, False, False, damaged=flaw)


def newest_complete(paths: RunPaths, fence: Fence | None, *, attempt: int | None = None) -> str | None:
    """Return the name of the newest complete checkpoint that the fence accepts.

    The newest is by step, then attempt; None if there is none. ``attempt``: only those that it has saved.

    A partial directory is skipped. An unreadable manifest is damage, not an interrupted save: the run must not continue
    silently from an older state.

    Raises:
        CheckpointCorruptError: A manifest that cannot be read is newer than any other.
    """
    for entry in reversed(list_checkpoints(paths, fence, attempt=attempt)):
        if entry.damaged:
            hint = "move the directory away to resume from an older checkpoint"
            raise CheckpointCorruptError(f"{entry.damaged} (hint: {hint})")
        if entry.accepted:
            return entry.name
    return None
