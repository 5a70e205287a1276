"""Checkpoints of simulated engines. The state after step k is a function of k, so that bytes prove their step."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from midstream_core import records
from midstream_core.object_store.bucket_client import ABSENT
from midstream_engine.checkpoint.stores import in_bucket
from midstream_engine.checkpoint.stores.run_bucket import RunBucket


def state_of(step: int) -> bytes:
    """Return the state after ``step`` updates."""
    return hashlib.sha256(f"state {step}".encode()).digest()


def loss_of(step: int) -> float:
    """Return the loss of an update."""
    return 5.0 / (1 + step / 100) + int.from_bytes(state_of(step)[:2], "big") / 1e6


def batch_digest(step: int) -> str:
    """Return the digest of the batch of an update."""
    return hashlib.sha256(f"batch {step}".encode()).hexdigest()


def train_record(step: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``train.json`` of a checkpoint."""
    size = config["trainer"]["train_batch_size"]
    return {
        "state": {"step": step, "batch_schedule": [{"start": 0, "value": size}], "next_batch": batch_digest(step)},
        "reference_losses": {"losses": [loss_of(step)], "sequences": 1},
        "provenance": {"config": dict(config), "validation": {}},
    }


def array_of(step: int) -> tuple[records.ArrayEntry, bytes]:
    """Return the one array of a state, and its bytes."""
    return records.ArrayEntry("model.weight", ["embed"], [8], "float32", [1], ["model.weight/c/0"]), state_of(step)


def write_checkpoint(
    paths: records.RunPaths, attempt: int, epoch: int, start: int, step: int, config: Mapping[str, Any]
) -> str:
    """Write a checkpoint's objects and manifest; return its name. Call with the run's lock held."""
    name = records.checkpoint_name(step, attempt, start if paths.store else 0)
    directory = paths.checkpoint(name)
    array, content = array_of(step)
    train = json.dumps(train_record(step, config)).encode()
    objects: list[dict[str, Any]] = []
    for path, data in ((array.objects[0], content), (records.TRAIN, train)):
        put_object(directory, path, data)
        objects.append(records.ObjectEntry(path, len(data), hashlib.sha256(data).hexdigest()).to_json())
    hashes = {entry["path"]: entry["sha256"] for entry in objects}
    digest = records.root_digest([array], hashes, json.loads(train)["state"])
    manifest = records.Manifest(
        format=records.FORMAT, version=records.FORMAT_VERSION, run_id=paths.run_id, step=step, attempt=attempt,
        epoch=epoch, created=time.time(), root_digest=digest, arrays=[array.to_json()], objects=objects, start=start,
        numbered=bool(paths.store),
    )  # fmt: skip
    put_object(directory, records.MANIFEST, json.dumps(manifest.to_json()).encode())
    return name


def put_object(directory: str, path: str, data: bytes) -> None:
    """Create an object of a checkpoint, on a disk or in a bucket."""
    if in_bucket(directory):
        RunBucket(directory).put(path, data, ABSENT)
        return
    full = os.path.join(directory, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    records.write_bytes(full, data)


def get_object(directory: str, path: str) -> bytes:
    """Return an object of a checkpoint."""
    if in_bucket(directory):
        return RunBucket(directory).get(path)[0]
    with open(os.path.join(directory, path), "rb") as file:
        return file.read()


def manifest_or_none(directory: str) -> records.Manifest | None:
    """Return the manifest of a checkpoint; None where it has none."""
    try:
        text = get_object(directory, records.MANIFEST)
    except FileNotFoundError:
        return None
    return records.Manifest.from_json(records.parse_json(text, directory), directory)
