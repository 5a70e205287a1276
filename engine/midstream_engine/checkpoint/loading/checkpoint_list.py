"""The list of a run's checkpoints. Reads manifests alone, needs no jax."""

from __future__ import annotations

import dataclasses

from midstream_core.records import MANIFEST, Fence, Manifest, RunPaths, parse_checkpoint_name
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.stores import open_checkpoints, open_store


@dataclasses.dataclass(frozen=True)
class FoundCheckpoint:
    """One checkpoint directory.

    Without a ``manifest`` it is partial: its save was interrupted or is running. ``flaw`` is why an existing manifest
    cannot be read.
    """

    name: str
    step: int
    attempt: int
    manifest: Manifest | None
    flaw: str = ""

    @property
    def complete(self) -> bool:
        """Whether it has a readable manifest."""
        return self.manifest is not None


def list_checkpoints(paths: RunPaths, *, attempt: int | None = None) -> list[FoundCheckpoint]:
    """Return every checkpoint directory of the run, by step, then attempt.

    Other names are skipped. ``attempt``: only those that it has saved; no manifest of another one is read.
    """
    checkpoints: list[FoundCheckpoint] = []
    for name in open_checkpoints(paths.checkpoints).names():
        key = parse_checkpoint_name(name)
        if key is not None and attempt in (None, key[1]):
            manifest, flaw = _manifest(paths.checkpoint(name), name)
            checkpoints.append(FoundCheckpoint(name, *key, manifest, flaw))
    return sorted(checkpoints, key=lambda entry: (entry.step, entry.attempt))


def _manifest(directory: str, name: str) -> tuple[Manifest | None, str]:
    if not open_store(directory).exists(MANIFEST):
        return None, ""
    try:
        manifest = read_manifest(directory)
    except CheckpointCorruptError as error:
        return None, str(error)
    if manifest.name != name:
        return None, f"{directory}: its manifest is that of {manifest.name}"
    return manifest, ""


def newest_complete(paths: RunPaths, fence: Fence | None, *, attempt: int | None = None) -> str | None:
    """Return the name of the newest complete checkpoint that the fence accepts.

    The newest is by step, then attempt; None if there is none. ``attempt``: only those that it has saved.

    A partial directory is skipped. An unreadable manifest is damage, not an interrupted save: the run must not continue
    silently from an older state.

    Raises:
        CheckpointCorruptError: A manifest that cannot be read is newer than any other.
    """
    for entry in reversed(list_checkpoints(paths, attempt=attempt)):
        if entry.flaw:
            hint = "move the directory away to resume from an older checkpoint"
            raise CheckpointCorruptError(f"{entry.flaw} (hint: {hint})")
        manifest = entry.manifest
        if manifest is not None and (fence is None or fence.accepts(manifest.epoch, manifest.step, manifest.start)):
            return entry.name
    return None
