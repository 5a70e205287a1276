"""How far a state that was computed twice is apart: the parameters of a shadow against those that the source saved."""

from __future__ import annotations

import logging
import math
import os
import threading
import time

import numpy as np

from midstream_engine import records
from midstream_engine.checkpoint.format import zarr
from midstream_engine.checkpoint.format.boxes import extent, whole
from midstream_engine.checkpoint.format.chunk_grid import chunks_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.packed_arrays import unpack
from midstream_engine.checkpoint.loading.list_checkpoints import read_manifest
from midstream_engine.checkpoint.saving.snapshot import HostArray, snapshot
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.loop.train_state import TrainState

log = logging.getLogger(__name__)
POLL = 0.5  # seconds between two looks for the sealed checkpoint
PATIENCE = 6 * 3600.0  # seconds after which nobody is taken to bring it any more
CHECKSUM = 4  # bytes of crc32c at the end of a cell's object


def keep(state: TrainState) -> list[HostArray]:
    """The parameters in host memory, under their names in a checkpoint."""
    return snapshot({"model": state.model}, copy=True)


def measure(directory: str, kept: list[HostArray]) -> records.ParameterDrift:
    """The distance between ``kept`` and the checkpoint in ``directory``: Euclidean norms, in float64, relative to the
    checkpoint's. CheckpointError where it is not complete; OSError where it cannot be read."""
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
            difference, norm = _squares(array.part(whole(array.shape)), packed[array.name])
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
    """(sum of squared differences, sum of squares of ``theirs``)."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.sum(np.square(a - b))), float(np.sum(np.square(b)))


def measure_later(attempt: Attempt, checkpoint: str, kept: list[HostArray]) -> threading.Thread:
    """Write ``parameter_drift.json`` once ``checkpoint`` is complete among the run's own, in a thread that ends with
    it."""

    def wait_and_measure() -> None:
        directory = attempt.paths.checkpoint(checkpoint)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(os.path.join(directory, records.MANIFEST)):
            if time.monotonic() >= deadline:
                log.warning("crossing: %s did not come", checkpoint)
                return
            time.sleep(POLL)
        try:
            found = measure(directory, kept)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on, and the certificate says it lacks
            log.error("crossing: %s: %s", type(error).__name__, error)
            return
        found.write(attempt.files.parameter_drift)
        log.info(
            "crossing: parameters are %.2e apart (worst: %s, %.2e)", found.distance, found.worst_array, found.worst
        )

    thread = threading.Thread(target=wait_and_measure, name="crossing", daemon=True)
    thread.start()
    return thread
