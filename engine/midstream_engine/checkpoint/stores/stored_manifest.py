"""Read the manifest of a checkpoint from its object store."""

from __future__ import annotations

import os

from midstream_core.json_types import JsonValue
from midstream_core.records import MANIFEST, Manifest, RecordError, parse_json
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.stores.object_store import ObjectStore


def manifest_of(store: ObjectStore) -> Manifest:
    """Return the manifest of a complete checkpoint.

    Raises:
        CheckpointCorruptError: There is none, or it cannot be read.
    """
    try:
        return Manifest.from_json(json_object(store, MANIFEST), os.path.join(store.where, MANIFEST))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointCorruptError(
            f"{store.where} is no checkpoint: it has no {MANIFEST} (hint: an interrupted save leaves none)"
        ) from error
    except RecordError as error:
        raise CheckpointCorruptError(with_place(str(error), store.where)) from error


def json_object(store: ObjectStore, path: str) -> JsonValue:
    """Return the value of a JSON object.

    Raises:
        FileNotFoundError: There is no such object.
        RecordError: The object is not JSON.
    """
    return parse_json(store.get(path), os.path.join(store.where, path))


def with_place(message: str, directory: str) -> str:
    """Return a message about a record with the directory that holds it."""
    return message if directory in message else f"{directory}: {message}"
