"""Parameter drift: distance of a replica's parameters from those the source saved."""

from __future__ import annotations

import logging
import math
import os
import threading
import time

import numpy as np

from midstream_core import records
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import extent, full_box
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.packed_arrays import unpack
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, snapshot
from midstream_engine.computation.train_state import TrainState
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.5  # seconds
CHECKPOINT_TIMEOUT = 6 * 3600.0  # seconds to wait for the sealed checkpoint
# Seconds that the end of an attempt waits for a measurement: the next start waits half a minute for that end.
END_TIMEOUT = 10.0
READ_TIMEOUT = 1.0  # seconds for a measurement that was given up to notice it after its present read
CHECKSUM = 4  # bytes of crc32c at the end of a chunk's object


def keep(state: TrainState) -> list[HostArray]:
    """Copy the parameters to host memory, under their names in a checkpoint."""
    return snapshot({"model": state.model}, Copy.HOST)


class EndedError(Exception):
    """The attempt ends before the measurement."""


def measure(directory: str, kept: list[HostArray], given_up: threading.Event | None = None) -> records.ParameterDrift:
    """Measure the distance of ``kept`` from a checkpoint, relative to its norm.

    Euclidean norms in float64. Raises CheckpointError where the checkpoint is not complete, OSError where it cannot be
    read, EndedError once ``given_up`` is set.
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
                if given_up is not None and given_up.is_set():
                    raise EndedError
                path = os.path.join(directory, zarr.chunk_path(array.name, index))
                raw = np.fromfile(path, np.uint8)[:-CHECKSUM]
                theirs = raw.view(numpy_dtype(array.dtype)).reshape(extent(box))
                own, other = _squares(array.part(box), theirs)
                difference, norm = difference + own, norm + other
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


class LateMeasurement:
    """Thread that writes ``parameter_drift.json``, once the run's checkpoint is there."""

    def __init__(self, attempt: AttemptRecord, checkpoint: str, kept: list[HostArray]) -> None:
        """Start it."""
        self._attempt, self._checkpoint, self._kept = attempt, checkpoint, kept
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._wait_and_measure, name="parameter-drift", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """End the thread, so that it does not write while the process exits.

        A checkpoint that has not arrived is not awaited; a measurement that has begun has ``timeout`` seconds. A read
        that hangs is left behind.
        """
        self._ended.set()
        self._thread.join(timeout)
        self._given_up.set()
        self._thread.join(READ_TIMEOUT)

    def _wait_and_measure(self) -> None:
        directory = self._attempt.paths.checkpoint(self._checkpoint)
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT
        while not os.path.exists(os.path.join(directory, records.MANIFEST)):
            if time.monotonic() >= deadline:
                log.warning("parameter drift not measured: %s did not arrive", self._checkpoint)
                return
            if self._ended.wait(POLL_INTERVAL):
                log.warning("parameter drift not measured: the attempt ends before %s arrives", self._checkpoint)
                return
        try:
            drift = measure(directory, self._kept, self._given_up)
            if self._given_up.is_set():
                raise EndedError
            drift.write(self._attempt.files.parameter_drift)
        except EndedError:
            log.warning("parameter drift not measured: the attempt ends")
            return
        except Exception as error:  # noqa: BLE001  training continues; the certificate reports that the file is missing
            log.error("parameter drift not measured: %s: %s", type(error).__name__, error)
            return
        log.info("parameter drift: %.2e (largest: %s, %.2e)", drift.distance, drift.worst_array, drift.worst)
