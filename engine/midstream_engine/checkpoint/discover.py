"""What checkpoints a run has. Reads manifests alone, needs no jax."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from midstream_engine.checkpoint.errors import CheckpointCorrupt
from midstream_engine.checkpoint.stores import open_shelf, open_store
from midstream_engine.records import (
    MANIFEST,
    TRAIN,
    Fence,
    Manifest,
    RecordError,
    RunPaths,
    parse_checkpoint_name,
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
    for name in open_shelf(paths.checkpoints).names():
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
        manifest = Manifest.from_json(_json(directory, MANIFEST), path)
        flaw = _mistyped(manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointCorrupt(f"{directory} is no checkpoint: it has no {MANIFEST} (a save cut off?)") from error
    except UnicodeDecodeError as error:
        raise CheckpointCorrupt(f"{path}: not UTF-8 ({error})") from error
    except RecordError as error:
        raise CheckpointCorrupt(_placed(str(error), directory)) from error
    except (TypeError, AttributeError, KeyError) as error:
        raise CheckpointCorrupt(f"{path}: not shaped like a manifest ({error})") from error
    if flaw:
        raise CheckpointCorrupt(f"{path}: {flaw}")
    return manifest


def _placed(message: str, directory: str) -> str:
    """A message about a record, with the directory that it is in."""
    return message if directory in message else f"{directory}: {message}"


def _mistyped(manifest: Manifest) -> str:
    """The first field whose value is of another type than it should be; empty where there is none."""
    numbers: list[tuple[str, Any]] = [(key, getattr(manifest, key)) for key in ("step", "attempt", "epoch")]
    texts: list[tuple[str, Any]] = [(key, getattr(manifest, key)) for key in ("run_id", "root_digest")]
    for entry in manifest.object_entries:
        numbers.append((f"size of {entry.path}", entry.size))
        texts += [(f"{key} of {entry.path}", getattr(entry, key)) for key in ("path", "sha256", "crc32c", "host")]
    for array in manifest.array_entries:
        texts += [(f"{key} of array {array.name}", getattr(array, key)) for key in ("name", "dtype", "sha256")]
        for key, into in (("shape", numbers), ("grid", numbers), ("axes", texts), ("objects", texts)):
            into += [(f"{key} of array {array.name}", value) for value in getattr(array, key)]
    wrong = [name for name, value in numbers if type(value) is not int or value < 0]
    wrong += [name for name, value in texts if not isinstance(value, str)]
    return f"{wrong[0]} is of the wrong type" if wrong else ""


def _json(directory: str, name: str) -> Any:
    """The value of a JSON object. FileNotFoundError where it is absent, RecordError where it is torn."""
    data = open_store(directory).get(name)
    try:
        return json.loads(data)
    except ValueError as error:
        raise RecordError(f"{os.path.join(directory, name)}: not JSON ({error})") from error


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
