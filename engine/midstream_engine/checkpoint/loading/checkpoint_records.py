"""Read what a checkpoint says about itself: its manifest and ``train.json``."""

from __future__ import annotations

import os
from typing import cast

from midstream_core.records import TRAIN, Manifest
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.stored_manifest import json_object, manifest_of, with_place
from midstream_engine.checkpoint.train_document import TrainDocument


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of the complete checkpoint in ``directory``.

    Raises:
        CheckpointCorruptError: There is none, or it cannot be read.
    """
    return manifest_of(open_store(directory))


def read_train(directory: str) -> TrainDocument:
    """Return ``train.json``: ``state``, ``provenance`` and ``reference_losses``.

    Raises:
        CheckpointCorruptError: ``train.json`` is missing or damaged.
    """
    path = os.path.join(directory, TRAIN)
    try:
        return check_train(json_object(open_store(directory), TRAIN), path)
    except FileNotFoundError as error:
        raise CheckpointCorruptError(f"{directory}: object {TRAIN}: missing") from error
    except ValueError as error:
        raise CheckpointCorruptError(with_place(str(error), directory)) from error


def check_train(value: object, where: str) -> TrainDocument:
    """Return ``value`` if it has the shape of ``train.json``.

    Raises:
        CheckpointCorruptError: ``value`` has another shape.
    """
    document = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not isinstance(document.get("state"), dict):
        raise CheckpointCorruptError(f"{where}: lacks 'state'")
    return cast("TrainDocument", document)
