"""The fence and the pins of a run in its bucket, to which several hosts write.

A bucket has no lock. A fence replaces only the version that was read, so the pair of epoch and start never decreases.
A checkpoint that is committed between the check and a newer fence is accepted by no reader: its epoch is too old, or
its start was closed at an earlier step.
"""

from __future__ import annotations

import json
import posixpath
import socket
import time

from midstream_core.attempt.save_fence import FenceUnreadableError, refuse_commit
from midstream_core.object_store.bucket_client import ABSENT
from midstream_core.records import MANIFEST, Fence, Pin, RecordError, RunPaths, parse_json
from midstream_engine.checkpoint.stores.run_bucket import RunBucket

FENCE = "fence.json"
PINS = "pins"
START_PIN = 24 * 3600.0  # seconds for a start to restore the checkpoint that it continues from


def run_prefix(paths: RunPaths) -> str:
    """Return ``SCHEME://bucket/prefix/runs/<run_id>``."""
    return posixpath.dirname(paths.checkpoints)


def _bucket(paths: RunPaths) -> RunBucket:
    return RunBucket(run_prefix(paths))


def read_fence(paths: RunPaths) -> tuple[Fence | None, str]:
    """Return the fence in the bucket and its version; None and ABSENT without one.

    Raises:
        FenceUnreadableError: The fence exists and cannot be read.
    """
    try:
        data, version = _bucket(paths).get(FENCE)
    except FileNotFoundError:
        return None, ABSENT
    where = f"{run_prefix(paths)}/{FENCE}"
    try:
        return Fence.from_json(parse_json(data, where), where), version
    except RecordError as error:
        raise FenceUnreadableError(f"{error}; nothing is committed until the fence can be read") from error


def check_fence(paths: RunPaths, local: Fence | None, epoch: int, step: int, start: int = 0) -> None:
    """Check that the fence in the bucket lets a start commit ``step-<step>``.

    If this host's own fence is newer, it replaces the one in the bucket. So a host that was unreachable during a
    migration finds at its next save that it no longer owns the run.

    Raises:
        FenceRejectedError: The fence in the bucket does not accept that step of that epoch, or the start is superseded.
        FenceUnreadableError: The fence in the bucket cannot be read.
    """
    while True:
        shared, version = read_fence(paths)
        if shared is not None:
            refuse_commit(shared, epoch, step, start, f"run {paths.run_id} ({run_prefix(paths)})")
        if local is None or (shared is not None and shared.order >= local.order):
            return
        try:
            write_fence(paths, local, version)
        except FileExistsError:
            continue  # another host was faster: read its fence
        return


def write_fence(paths: RunPaths, fence: Fence, version: str) -> None:
    """Replace ``version`` of the fence in the bucket.

    Raises FileExistsError where there is another version by now.
    """
    _bucket(paths).put(FENCE, json.dumps(fence.to_json(), indent=1).encode(), version)


def hold_for_start(paths: RunPaths, checkpoint: str) -> bool:
    """Pin the checkpoint that a start continues from.

    Returns whether it still exists then. The start before may remove it as soon as it has committed a newer one.
    """
    bucket = _bucket(paths)
    pin = Pin(checkpoint, time.time() + START_PIN)
    bucket.put(f"{PINS}/start.json", json.dumps(pin.to_json()).encode(), None)
    return bucket.look(f"checkpoints/{checkpoint}/{MANIFEST}") is not None


def newest_fence(paths: RunPaths, local: Fence | None) -> Fence | None:
    """Return the fence with the newer start: this host's or the bucket's."""
    shared, _ = read_fence(paths)
    return max((fence for fence in (local, shared) if fence), key=lambda fence: fence.order, default=None)


def claim_attempt(paths: RunPaths, number: int) -> bool:
    """Reserve an attempt number for this host; False if another has it.

    The number is part of checkpoints' names.
    """
    data = json.dumps({"host": socket.gethostname(), "time": time.time()}).encode()
    try:
        _bucket(paths).put(f"attempts/{number:03d}.json", data, ABSENT)
    except FileExistsError:
        return False
    return True


def read_pins(paths: RunPaths, now: float) -> set[str]:
    """Return the names of checkpoints pinned in the bucket at ``now`` (UTC seconds).

    Raises:
        RecordError: A pin is damaged.
    """
    pinned: set[str] = set()
    for path in _bucket(paths).entries(f"{PINS}/"):
        if path.endswith("/"):  # the marker of the folder, as consoles and gcsfuse create it
            continue
        try:
            data, _ = _bucket(paths).get(path)
        except FileNotFoundError:
            continue  # another process removed it
        where = f"{run_prefix(paths)}/{path}"
        pin = Pin.from_json(parse_json(data, where), where)
        if pin.expires > now:
            pinned.add(pin.checkpoint)
    return pinned
