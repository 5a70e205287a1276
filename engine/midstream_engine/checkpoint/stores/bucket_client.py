"""The GCS client of checkpoints: manifests, pins, the fence and names. TensorStore carries the arrays."""

from __future__ import annotations

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.gcs_client import GcsClient

bucket_client = GcsClient(CheckpointError)
