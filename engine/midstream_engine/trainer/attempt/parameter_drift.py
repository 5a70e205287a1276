"""Parameter drift: distance of a replica's parameters from the saved ones.

The source saved the latter.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time

import numpy as np

from midstream_engine import records
from midstream_engine.checkpoint.format import zarr
from midstream_engine.checkpoint.format.boxes import extent, full_box
from midstream_engine.checkpoint.format.chunk_grid import chunks_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.packed_arrays import unpack
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, snapshot
from midstream_engine.trainer.computation.train_state import TrainState
from midstream_engine.trainer.runtime.attempt_record import Attempt

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.5  # seconds
CHECKPOINT_TIMEOUT = 6 * 3600.0  # seconds to wait for the sealed checkpoint
CHECKSUM = 4  # bytes of crc32c at the end of a chunk's object


def keep(state: TrainState) -> list[HostArray]:
    """Copy the parameters to host memory, under their names in a checkpoint."""
    return snapshot({"model": state.model}, Copy.HOST)


def measure(directory: str, kept: list[HostArray]) -> records.ParameterDrift:
    """Measure the distance of ``kept`` from the checkpoint in ``directory``.

    It is relative to the checkpoint's norm.

    Euclidean norms in float64. Raises CheckpointError where the checkpoint is not complete, OSError where it cannot be
    read.
    """
    manifest = read_manifest(directory)
    entries = {entry.name: entry for entry in manifest.array_entries}
    packed: dict[str, np.ndarray] = {}
    if any(not entries[array.name].grid for array in kept):
        with open(os.path.join(directory, records.PACKED), "rb") as file:
            packed = unpack(file.read())
    total_difference = total = 0.0
    worst, worst_array, numbers = 0.0, "", 0
    for array in kept:
        entry = entries[array.name]
        difference = norm = 0.0
        if entry.grid:
            for index, box in chunks_of(array.shape, tuple(entry.grid)):
                path = os.path.join(directory, zarr.chunk_path(array.name, index))
                raw = np.fromfile(path, np.uint8)[:-CHECKSUM]
                theirs = raw.view(numpy_dtype(array.dtype)).reshape(extent(box))
                one, other = _squares(array.part(box), theirs)
                difference, norm = difference + one, norm + other
        else:
            difference, norm = _squares(array.part(full_box(array.shape)), packed[array.name])
        relative = math.sqrt(difference / norm) if norm else math.sqrt(difference)
        if relative >= worst:
            worst, worst_array = relative, array.name
        total_difference, total = total_difference + difference, total + norm
        numbers += math.prod(array.shape)
    distance = math.sqrt(total_difference / total) if total else math.sqrt(total_difference)
    return records.ParameterDrift(
        manifest.step, manifest.name, manifest.root_digest, distance, worst, worst_array, numbers
    )


def _squares(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return the sum of squared differences and the sum of squares of ``theirs``."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.sum(np.square(a - b))), float(np.sum(np.square(b)))


def measure_later(attempt: Attempt, checkpoint: str, kept: list[HostArray]) -> threading.Thread:
    """Start a thread that writes ``parameter_drift.json``.

    It does so once the run's ``checkpoint`` is complete.
    """

    def wait_and_measure() -> None:
        directory = attempt.paths.checkpoint(checkpoint)
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT
        while not os.path.exists(os.path.join(directory, records.MANIFEST)):
            if time.monotonic() >= deadline:
                log.warning("parameter drift not measured: %s did not arrive", checkpoint)
                return
            time.sleep(POLL_INTERVAL)
        try:
            found = measure(directory, kept)
            found.write(attempt.files.parameter_drift)
        except Exception as error:  # noqa: BLE001  training continues; the certificate reports that the file is missing
            log.error("parameter drift not measured: %s: %s", type(error).__name__, error)
            return
        log.info("parameter drift: %.2e (largest: %s, %.2e)", found.distance, found.worst_array, found.worst)

    thread = threading.Thread(target=wait_and_measure, name="parameter-drift", daemon=True)
    thread.start()
    return thread
