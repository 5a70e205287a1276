"""Training states without a model: every dtype and shape that the engine has, in a few MiB."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from midstream_core.records import Manifest, RunPaths
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save import begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy

STATE = {"step": 7, "schedule": [0.1, 1e-9, 2.5], "seed": 2**40, "data": {"digest": "ab", "index": 56}}
PROVENANCE = {"devices": 2, "versions": {"jax": "0.10"}}
REFERENCE_LOSSES = {"losses": [4.158883083359672, 4.1]}


class Moments(NamedTuple):
    """Stand-in for an optimizer's state, which consists of nested named tuples."""

    count: Any
    mu: Any


def plain_state(seed: int = 0) -> dict[str, Any]:
    """Return a tree of numpy arrays: 4 MiB in two chunks, 1.5 MiB in one, and small arrays of each dtype."""
    random = np.random.default_rng(seed)
    return {
        "model": {
            "wide": random.standard_normal((512, 2048)).astype(np.float32),
            "half": random.standard_normal((3, 512, 512)).astype(ml_dtypes.bfloat16),
            "bias": random.standard_normal((2048,)).astype(np.float32),
        },
        "opt": (Moments(np.array(7, np.int32), {"bias": np.zeros((2048,), np.float32)}), ()),
        "key": random.integers(0, 2**32, (2,), np.uint32),
        "mask": np.array([True, False, True]),
        "empty": np.zeros((0, 3), np.float32),
    }


def save(paths: RunPaths, tree: Any, step: int = 7, attempt: int = 1, epoch: int = 1, **more: Any) -> Manifest:
    """Save a state and wait; by default with this module's training state."""
    document = train_document(
        more.get("state", STATE), more.get("provenance", PROVENANCE), more.get("reference_losses", REFERENCE_LOSSES)
    )
    return begin_save(
        paths, tree, document, step=step, attempt=attempt, epoch=epoch, start=more.get("start", 0), copy=Copy.NONE
    ).finish()
