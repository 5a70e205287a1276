"""Runs by hand whose checkpoints are in a bucket of the simulator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from midstream_core import records
from simulators.object_stores.bucket import BucketServer

BUCKET = "runs"
PREFIX = "ours"
STORE = f"gs://{BUCKET}/{PREFIX}"


def to_bucket(bucket: BucketServer, paths: records.RunPaths, prefix: str = PREFIX) -> None:
    """Move the checkpoints of a run from its host to the bucket, with the fence, as an engine commits them."""
    for file in sorted(Path(paths.checkpoints).rglob("*"), key=lambda path: path.name == records.MANIFEST):
        if file.is_file():
            bucket.put(BUCKET, f"{prefix}/runs/{paths.run_id}/{file.relative_to(paths.dir)}", file.read_bytes())
    shutil.rmtree(paths.checkpoints, ignore_errors=True)
    store = f"gs://{BUCKET}/{prefix}"
    records.Store(store).write(paths.store_file)
    text = Path(paths.config).read_text()
    if store not in text:
        text = text.replace("trainer: {", f'trainer: {{checkpointer: {{base_path: "{store}"}}, ')
        Path(paths.config).write_text(text)
    put_fence(bucket, paths.run_id, records.Fence.read(paths.fence), prefix)


def put_fence(bucket: BucketServer, run_id: str, fence: records.Fence, prefix: str = PREFIX) -> None:
    """Write the fence of a run in the bucket."""
    bucket.put(BUCKET, f"{prefix}/runs/{run_id}/fence.json", json.dumps(fence.to_json()).encode())
