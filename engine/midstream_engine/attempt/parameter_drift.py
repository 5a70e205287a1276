"""Parameter drift: distance of a replica's parameters from those the source saved."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import extent, full_box, overlap, volume, within
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.packed_arrays import unpack
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, snapshot
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.hashed_objects import read_object
from midstream_engine.computation.train_state import TrainState
from midstream_engine.processes.coordinator_client import PeerLostError
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)
POLL_INTERVAL = 0.5  # seconds
CHECKPOINT_TIMEOUT = 6 * 3600.0  # seconds to wait for the sealed checkpoint
# Seconds that the end of an attempt waits for a measurement: the next start waits half a minute for that end.
END_TIMEOUT = 10.0
READ_TIMEOUT = 1.0  # seconds for a measurement that was given up to notice it after its present read
CHECKSUM = 4  # bytes of crc32c at the end of a chunk's object
MESSAGE = "parameter-drift"  # of each other process to process 0
ENDED = "the attempt ends"


def keep(state: TrainState) -> list[HostArray]:
    """Copy the parameters to host memory, under their names in a checkpoint."""
    return snapshot({"model": state.model}, Copy.HOST)


class EndedError(Exception):
    """The attempt ends, or another process has not measured."""


def measure(
    directory: str, kept: list[HostArray], processes: Processes = ALONE, given_up: threading.Event | None = None
) -> tuple[records.Manifest, records.ShardDrift]:
    """Measure the distance of this process's parameters from those of a checkpoint.

    Relative to the norm of the checkpoint's; Euclidean norms in float64.

    Args:
        directory: Directory of the checkpoint.
        kept: The parameters, those of this process's devices.
        processes: Processes of the attempt.
        given_up: Ends the measurement.

    Returns:
        The checkpoint's manifest, and the distance.

    Raises:
        CheckpointError: The checkpoint is not complete, or an object of it is damaged.
        EndedError: ``given_up`` was set.
    """
    manifest, store = read_manifest(directory), open_store(directory)
    entries = {entry.name: entry for entry in manifest.array_entries}
    objects = {entry.path: entry for entry in manifest.object_entries}
    small: dict[str, np.ndarray] = {}
    if any(not entries[array.name].grid for array in kept):
        small = unpack(read_object(store, objects[records.PACKED])[0])
    sums = dict[str, tuple[float, float]]()  # squared difference and squared norm, by array
    numbers = 0
    for array in kept:
        entry, difference, norm = entries[array.name], 0.0, 0.0
        for index, box in chunks_of(array.shape, tuple(entry.grid)) if entry.grid else [((), full_box(array.shape))]:
            pieces = ((overlap(box, origin), origin, ours) for origin, ours in array.pieces)
            shared = [(both, origin, ours) for both, origin, ours in pieces if both is not None]
            if not shared:
                continue  # a chunk of another process's shards
            if given_up is not None and given_up.is_set():
                raise EndedError(ENDED)
            theirs = small.get(array.name)
            if theirs is None:
                raw, _ = read_object(store, objects[zarr.chunk_path(array.name, index)], chunk=True)
                flat = np.frombuffer(raw, np.uint8)[:-CHECKSUM]
                theirs = flat.view(numpy_dtype(array.dtype)).reshape(extent(box))
            for both, origin, ours in shared:
                own, other = _squares(ours[within(both, origin)], theirs[within(both, box)])
                difference, norm, numbers = difference + own, norm + other, numbers + volume(both)
        sums[array.name] = difference, norm
    distances = {name: _relative(*both) for name, both in sums.items()}
    worst_array = max(distances, key=lambda name: (distances[name], name), default="")
    difference, norm = (math.fsum(both[which] for both in sums.values()) for which in (0, 1))
    shard = records.ShardDrift(
        process=processes.index,
        host=processes.host,
        distance=_relative(difference, norm),
        worst=distances.get(worst_array, 0.0),
        worst_array=worst_array,
        parameters=numbers,
        norm=math.sqrt(norm),
    )
    return manifest, shard


def _squares(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return the sum of squared differences and the sum of squares of ``theirs``."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.sum(np.square(a - b))), float(np.sum(np.square(b)))


def _relative(difference: float, norm: float) -> float:
    """Return the distance of these squares, relative where there is a norm."""
    return math.sqrt(difference / norm) if norm else math.sqrt(difference)


def combined(manifest: records.Manifest, shards: Sequence[records.ShardDrift]) -> records.ParameterDrift:
    """Return the drift of all parameters from that of each process's shards."""
    worst = max(shards, key=lambda shard: shard.worst)
    norm = math.fsum(shard.norm**2 for shard in shards)
    difference = math.fsum((shard.distance * (shard.norm or 1.0)) ** 2 for shard in shards)
    return records.ParameterDrift(
        step=manifest.step,
        checkpoint=manifest.name,
        root_digest=manifest.root_digest,
        distance=_relative(difference, norm),
        worst=worst.worst,
        worst_array=worst.worst_array,
        parameters=sum(shard.parameters for shard in shards),
        shards=[shard.to_json() for shard in shards] if len(shards) > 1 else [],
    )


class LateMeasurement:
    """Thread that measures the drift, once the run's checkpoint is there.

    Process 0 writes ``parameter_drift.json``, from what every process has measured of its own shards.
    """

    def __init__(self, attempt: AttemptRecord, checkpoint: str, kept: list[HostArray]) -> None:
        """Start it."""
        self._attempt, self._checkpoint, self._kept = attempt, checkpoint, kept
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="parameter-drift", daemon=True)
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

    def _work(self) -> None:
        """Write the drift on process 0; send this process's part to it on the others."""
        processes = self._attempt.processes
        try:
            manifest, shard = self._measured()
            if not processes.leads:
                return self._send({"root_digest": manifest.root_digest, "shard": shard.to_json()})
            drift = combined(manifest, [shard, *self._others(manifest)])
            if self._given_up.is_set():
                raise EndedError(ENDED)
            drift.write(self._attempt.files.parameter_drift)
        except EndedError as why:
            reason = str(why)
            log.warning("parameter drift not measured: %s", reason)
        except Exception as error:  # noqa: BLE001  training continues; the certificate reports that the file is missing
            reason = f"{type(error).__name__}: {error}"
            log.error("parameter drift not measured: %s", reason)
        else:
            log.info("parameter drift: %.2e (largest: %s, %.2e)", drift.distance, drift.worst_array, drift.worst)
            return None
        if not processes.leads:
            with contextlib.suppress(PeerLostError):  # process 0 waits for nothing any more
                self._send({"failure": reason})
        return None

    def _measured(self) -> tuple[records.Manifest, records.ShardDrift]:
        """Wait for the checkpoint, and measure this process's shards.

        Errors as of `measure`, and EndedError where it does not arrive.
        """
        directory = self._attempt.paths.checkpoint(self._checkpoint)
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT
        while not os.path.exists(os.path.join(directory, records.MANIFEST)):
            if time.monotonic() >= deadline:
                raise EndedError(f"{self._checkpoint} did not arrive")
            if self._ended.wait(POLL_INTERVAL):
                raise EndedError(f"the attempt ends before {self._checkpoint} arrives")
        return measure(directory, self._kept, self._attempt.processes, self._given_up)

    def _send(self, answer: Mapping[str, object]) -> None:
        client = self._attempt.processes.client
        assert client is not None
        client.send(MESSAGE, json.dumps(answer).encode(), 0)

    def _others(self, manifest: records.Manifest) -> Iterator[records.ShardDrift]:
        """Yield what the other processes have measured.

        Raises:
            EndedError: One has not measured, or measured against another checkpoint.
        """
        client = self._attempt.processes.client
        for process in range(1, self._attempt.processes.count):
            assert client is not None
            answer = object_or_empty(records.parse_json(client.receive(MESSAGE, process, CHECKPOINT_TIMEOUT), MESSAGE))
            if "shard" not in answer:
                raise EndedError(f"{client.peers[process]}: {answer.get('failure')}")
            if answer["root_digest"] != manifest.root_digest:
                raise EndedError(f"{client.peers[process]} has another {self._checkpoint}: {answer['root_digest']}")
            yield records.ShardDrift.from_json(answer["shard"], MESSAGE)
