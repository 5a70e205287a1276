"""What a run keeps beside its checkpoints in a bucket, because several hosts write there: its fence and its pins.

There is no lock over a bucket. A fence there is replaced only from the generation that was read, so it never goes back;
and whatever slips in between a look at it and a commit is not accepted by any reader, because its epoch is too old.
"""

from __future__ import annotations

import json
import posixpath
import socket
import time

from midstream_engine.checkpoint.saving.save_fence import Fenced, FenceUnreadable
from midstream_engine.checkpoint.stores import gcs_client
from midstream_engine.records import Fence, Pin, RecordError, RunPaths, parse_json

FENCE = "fence.json"
PINS = "pins"


def run_prefix(paths: RunPaths) -> str:
    """``gs://bucket/prefix/runs/<run_id>``."""
    return posixpath.dirname(paths.checkpoints)


def read_fence(paths: RunPaths) -> tuple[Fence | None, int]:
    """The fence in the bucket and its generation; None and 0 where there is none yet. FenceUnreadable."""
    try:
        data, generation = gcs_client.get(run_prefix(paths), FENCE)
    except FileNotFoundError:
        return None, 0
    where = f"{run_prefix(paths)}/{FENCE}"
    try:
        return Fence.from_json(parse_json(data, where), where), generation
    except RecordError as error:
        raise FenceUnreadable(f"{error}; nothing is committed until the fence can be read") from error


def check_fence(paths: RunPaths, local: Fence | None, epoch: int, step: int) -> None:
    """Fenced unless the fence in the bucket accepts ``step-<step>`` of ``epoch``. A newer one of this host is put
    there, so that a host that nobody could reach learns at its next save that the run has moved on."""
    while True:
        shared, generation = read_fence(paths)
        if shared is not None and not shared.accepts(epoch, step):
            raise Fenced(
                f"run {paths.run_id} is held by {shared.owner} under epoch {shared.epoch}, sealed at step "
                f"{shared.sealed_step} ({run_prefix(paths)}): step {step} of epoch {epoch} is not accepted; "
                "this attempt has to end"
            )
        if local is None or (shared is not None and shared.epoch >= local.epoch):
            return
        try:
            text = json.dumps(local.to_json(), indent=1).encode()
            gcs_client.put(run_prefix(paths), FENCE, text, generation)
        except FileExistsError:
            continue  # another host was faster: what does its fence say?
        return


def newest_fence(paths: RunPaths, local: Fence | None) -> Fence | None:
    """Of this host's fence and that in the bucket the one with the higher epoch."""
    shared, _ = read_fence(paths)
    return max((fence for fence in (local, shared) if fence), key=lambda fence: fence.epoch, default=None)


def claim_attempt(paths: RunPaths, number: int) -> bool:
    """Take an attempt number, which the names of checkpoints hold, for this host alone; False where another has it."""
    data = json.dumps({"host": socket.gethostname(), "time": time.time()}).encode()
    try:
        gcs_client.put(run_prefix(paths), f"attempts/{number:03d}.json", data, 0)
    except FileExistsError:
        return False
    return True


def read_pins(paths: RunPaths, now: float) -> set[str]:
    """Names of the checkpoints that pins in the bucket hold at ``now`` (UTC seconds). RecordError for a torn one."""
    found = set()
    for path in gcs_client.entries(run_prefix(paths), f"{PINS}/"):
        try:
            data, _ = gcs_client.get(run_prefix(paths), path)
        except FileNotFoundError:
            continue  # it was just taken out
        where = f"{run_prefix(paths)}/{path}"
        pin = Pin.from_json(parse_json(data, where), where)
        if pin.expires > now:
            found.add(pin.checkpoint)
    return found
