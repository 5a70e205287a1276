"""Each process of a replica compares its own shards with the sealed checkpoint; process 0 writes what all found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from midstream_core import records
from midstream_engine.attempt.parameter_drift import LateMeasurement, measure
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import Box
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.processes.coordinator_client import CoordinatorClient
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.processes.shared_file_systems import SharedFileSystems
from midstream_engine.runtime.attempt_record import AttemptRecord
from support.checkpoints.checkpoint_states import save
from support.checkpoints.spread_hosts import Hosts

NAME = "step-7-a001"
WIDE = np.arange(512 * 2048, dtype=np.float32).reshape(512, 2048) % 97 + 1
SMALL = np.linspace(1, 2, 6, dtype=np.float32)
SCALE = np.float32(3.0)
STATE = {"model": {"scale": SCALE, "small": SMALL, "wide": WIDE}}
ROWS: tuple[Box, Box] = (((0, 200), (0, 2048)), ((200, 512), (0, 2048)))  # a chunk of the checkpoint is of both
HALVES: tuple[Box, Box] = (((0, 3),), ((3, 6),))


def kept(process: int, changed: float = 0.0) -> list[HostArray]:
    """Return the shards of a process, with ``changed`` added to each number of ``wide``."""
    ((first, last), _), ((start, stop),) = ROWS[process], HALVES[process]
    return [
        HostArray("model/scale", (), (), "float32", [((), np.asarray(SCALE))]),  # both have it
        HostArray("model/small", ("embed",), (6,), "float32", [(HALVES[process], SMALL[start:stop])]),
        HostArray("model/wide", ("a", "b"), WIDE.shape, "float32", [(ROWS[process], WIDE[first:last] + changed)]),
    ]


def measured(hosts: Hosts, changed: float = 0.0) -> records.ParameterDrift | None:
    """Measure on both hosts, whose checkpoints are there; return what process 0 wrote. ``changed``: of process 1."""

    def work(client: CoordinatorClient, _systems: SharedFileSystems) -> None:
        host = "ab"[client.process]
        processes = Processes(client.process, client.count, host, client)
        attempt = AttemptRecord(hosts.paths(host), 2, 2, "", False, True, processes=processes)
        Path(attempt.files.dir).mkdir()
        measurement = LateMeasurement(attempt, NAME, kept(client.process, changed if client.process else 0.0))
        measurement._thread.join(60)
        processes.barrier("end")

    assert hosts.together("ab", work) == [None, None]
    assert not Path(hosts.paths("b").attempt(2).parameter_drift).exists()
    return records.ParameterDrift.read_or_none(hosts.paths("a").attempt(2).parameter_drift)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    """Two hosts, each with the copied checkpoint."""
    hosts = Hosts(tmp_path)
    for host in "ab":
        save(hosts.paths(host), STATE)
    return hosts


def test_each_process_measures_its_own_shards(hosts: Hosts) -> None:
    drift = measured(hosts, changed=0.5)
    assert drift is not None
    first, second = drift.shard_drifts
    assert (first.process, first.host, second.process, second.host) == (0, "a", 1, "b")
    assert (first.distance, first.worst) == (0.0, 0.0)
    own, everything = WIDE[200:].astype(np.float64), WIDE.astype(np.float64)
    assert second.worst_array == drift.worst_array == "model/wide"
    assert second.worst == drift.worst == pytest.approx(0.5 * math.sqrt(own.size) / np.linalg.norm(own), rel=1e-6)
    assert first.parameters + second.parameters == drift.parameters == WIDE.size + SMALL.size + 2
    norm = math.hypot(float(np.linalg.norm(everything)), float(np.linalg.norm(SMALL)), SCALE, SCALE)
    assert drift.distance == pytest.approx(0.5 * math.sqrt(own.size) / norm, rel=1e-6)
    assert math.hypot(first.norm, second.norm) == pytest.approx(norm, rel=1e-6)
    assert drift.root_digest == records.Manifest.read(f"{hosts.paths('a').checkpoint(NAME)}/manifest.json").root_digest


def test_drift_is_not_measured_without_a_shard(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    """An object of host b is damaged: nothing is compared with it, and process 0 names the process and the object."""
    path = zarr.chunk_path("model/wide", (0, 0))
    with open(Path(hosts.paths("b").checkpoint(NAME), path), "r+b") as file:
        file.write(b"damaged")
    assert measured(hosts) is None
    (line,) = [line for line in caplog.messages if "not measured: process 1 (b, pid " in line]
    assert f"object {path}: SHA-256" in line


def test_drift_from_another_checkpoint_is_not_taken(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    other = Hosts(hosts._root / "other")
    save(other.paths("a"), {"model": {**STATE["model"], "small": SMALL + 1}})
    Path(hosts.paths("b").checkpoint(NAME)).rename(hosts._root / "removed")
    Path(other.paths("a").checkpoint(NAME)).rename(hosts.paths("b").checkpoint(NAME))
    assert measured(hosts) is None
    assert "has another step-7-a001" in caplog.text


def test_damaged_small_arrays_are_not_compared(hosts: Hosts) -> None:
    directory = hosts.paths("a").checkpoint(NAME)
    with open(Path(directory, records.PACKED), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(CheckpointCorruptError, match="SHA-256"):
        measure(directory, kept(0))
