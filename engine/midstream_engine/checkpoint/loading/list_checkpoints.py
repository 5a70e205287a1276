"""What checkpoints a run has. Reads manifests alone, needs no jax."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from midstream_engine.checkpoint.errors import CheckpointCorrupt
from midstream_engine.checkpoint.stores import open_checkpoints, open_store
from midstream_engine.records import (
    MANIFEST,
    TRAIN,
    Fence,
    Manifest,
    RecordError,
    RunPaths,
    parse_checkpoint_name,
    parse_json,
)


@dataclasses.dataclass(frozen=True)
class Found:
    """One checkpoint directory. Without a ``manifest`` it is torn: a save that was cut off, or is under way. ``flaw``
    says why a manifest that is there cannot be read."""

    name: str
    step: int
    attempt: int
    manifest: Manifest | None
    flaw: str = ""

    @property
    def complete(self) -> bool:
        return self.manifest is not None


def list_checkpoints(paths: RunPaths) -> list[Found]:
    """Every checkpoint directory of the run, by step, then attempt. Other names are left out."""
    found = []
    for name in open_checkpoints(paths.checkpoints).names():
        key = parse_checkpoint_name(name)
        if key is not None:
            manifest, flaw = _manifest(paths.checkpoint(name), name)
            found.append(Found(name, *key, manifest, flaw))
    return sorted(found, key=lambda entry: (entry.step, entry.attempt))


def _manifest(directory: str, name: str) -> tuple[Manifest | None, str]:
    if not open_store(directory).exists(MANIFEST):
        return None, ""
    try:
        manifest = read_manifest(directory)
    except CheckpointCorrupt as error:
        return None, str(error)
    if manifest.name != name:
        return None, f"{directory}: its manifest is that of {manifest.name}"
    return manifest, ""


def newest_complete(paths: RunPaths, fence: Fence | None) -> str | None:
    """The name of the newest (by step, then attempt) complete checkpoint that the fence accepts, or None.

    A torn directory is passed over. A manifest that is there but cannot be read is rot, not a cut-off save: it is never
    answered with an older state behind the user's back, so CheckpointCorrupt is raised when it is the newest.
    """
    for entry in reversed(list_checkpoints(paths)):
        if entry.flaw:
            raise CheckpointCorrupt(f"{entry.flaw}; move the directory away to resume from an older checkpoint")
        manifest = entry.manifest
        if manifest is not None and (fence is None or fence.accepts(manifest.epoch, manifest.step)):
            return entry.name
    return None


def read_manifest(directory: str) -> Manifest:
    """The manifest of a complete checkpoint. CheckpointCorrupt where there is none or it cannot be read."""
    path = os.path.join(directory, MANIFEST)
    try:
        return Manifest.from_json(_json(directory, MANIFEST), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointCorrupt(f"{directory} is no checkpoint: it has no {MANIFEST} (a save cut off?)") from error
    except RecordError as error:
        raise CheckpointCorrupt(_placed(str(error), directory)) from error


def _placed(message: str, directory: str) -> str:
    """A message about a record, with the directory that it is in."""
    return message if directory in message else f"{directory}: {message}"


def _json(directory: str, name: str) -> Any:
    """The value of a JSON object. FileNotFoundError where it is absent, RecordError where it is torn."""
    return parse_json(open_store(directory).get(name), os.path.join(directory, name))


def read_train(directory: str) -> dict[str, Any]:
    """``train.json``: ``state``, ``provenance`` and ``witness``. CheckpointCorrupt where it is missing or torn."""
    path = os.path.join(directory, TRAIN)
    try:
        return check_train(_json(directory, TRAIN), path)
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{directory}: object {TRAIN}: missing") from error
    except ValueError as error:
        raise CheckpointCorrupt(_placed(str(error), directory)) from error


def check_train(value: Any, where: str) -> dict[str, Any]:
    """``value`` where it has the shape of ``train.json``, else CheckpointCorrupt."""
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict):
        raise CheckpointCorrupt(f"{where}: lacks 'state'")
    return value
