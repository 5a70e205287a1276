"""Copies of a state on its devices: exact bytes, memory that is freed part by part, and what replaces a failed copy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import checkpoint_writer, device_copy
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document, write_objects
from midstream_engine.checkpoint.saving.device_copy import DevicePart, Transfers, copy_on_devices
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, release, snapshot
from support.checkpoints.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, save

MIB = 1 << 20


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path), "run")


def state(scale: float = 1.0) -> dict[str, Any]:
    """2 to 8 MiB in several dtypes and shardings on four devices, one of them in columns, and small arrays."""
    random = np.random.default_rng(0)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))

    def put(array: Any, *spec: str | None) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))

    wide = (scale * random.standard_normal((2048, 1024))).astype(np.float32)
    return {
        "rows": put(wide, "data"),
        "columns": put(wide[::-1], None, "data"),
        "half": put(jnp.asarray(wide[:, :512], jnp.bfloat16), "data"),
        "replicated": put(wide[:1024]),
        "replicated2": put(wide[1024:]),
        "not_finite": put(np.full((512, 1024), np.nan, np.float32), "data"),
        "counts": put(random.integers(0, 2**31, (1024, 512), np.int32)),
        "bias": put(wide[0], "data"),
        "step": put(np.int32(7)),
        "key": put(jax.random.key(5)),
        "numpy": wide.copy(),
    }


def overwrite(tree: dict[str, Any]) -> None:
    """Compute updates that take the memory of the state."""
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    arrays = {name: leaf for name, leaf in tree.items() if name not in ("key", "numpy")}
    for _ in range(3):
        arrays = jax.block_until_ready(update(arrays))
    tree["key"].delete()
    tree["numpy"][:] = 0


def begin(paths: RunPaths, tree: Any, step: int = 7) -> PendingSave:
    document = train_document(STATE, PROVENANCE, REFERENCE_LOSSES)
    return begin_save(paths, tree, document, step=step, attempt=1, epoch=1, copy=Copy.DEVICES)


def device_parts(arrays: list[HostArray]) -> dict[str, list[DevicePart]]:
    found = {array.name: [piece for _, piece in array.pieces if isinstance(piece, DevicePart)] for array in arrays}
    return {name: parts for name, parts in found.items() if parts}


def on_devices(parts: dict[str, list[DevicePart]]) -> list[str]:
    """Names of the arrays that have memory on devices."""
    return [name for name, each in parts.items() if any(part.data is not None for part in each)]


def places(array: jax.Array) -> set[int]:
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def test_copy_has_the_bytes_of_before_the_donated_update(paths: RunPaths, tmp_path: Path) -> None:
    expected = save(RunPaths(str(tmp_path / "expected"), "run"), state())
    tree = state()
    pending = begin(paths, tree)
    overwrite(tree)
    assert all(tree[name].is_deleted() for name in tree if name != "numpy")
    manifest = pending.finish()
    assert (manifest.root_digest, manifest.objects) == (expected.root_digest, expected.objects)
    assert verify_checkpoint(paths.checkpoint(manifest.name), deep=True).sound


def test_copies_have_memory_of_their_own_once_per_part() -> None:
    tree = state()
    parts = device_parts(snapshot(tree, Copy.DEVICES))
    assert sorted(parts) == ["columns", "counts", "half", "not_finite", "replicated", "replicated2", "rows"]
    for name, own in parts.items():
        arrays = [part.data for part in own if part.data is not None]
        assert not places(tree[name]) & set.union(*map(places, arrays)), name
        assert sum(array.nbytes for array in arrays) == tree[name].nbytes, name
    replicas = [parts[name][0].data for name in ("counts", "replicated", "replicated2")]
    assert len({device for array in replicas if array is not None for device in array.devices()}) == 3  # divided


def test_device_memory_is_freed_array_by_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which the writer reads; host memory with it."""
    monkeypatch.setattr(device_copy, "AHEAD", 1)  # one part
    monkeypatch.setattr(checkpoint_writer, "run_bounded", lambda tasks: [task() for _, task in tasks])  # in one thread
    arrays = snapshot(state(), Copy.DEVICES)
    parts = device_parts(arrays)
    buffers = {name: [part.data for part in each] for name, each in parts.items()}
    left, held = [], []

    class Target:
        def write(self, path: str, blocks: Any) -> None:
            del path
            for _ in blocks:
                left.append(len(on_devices(parts)))
                held.append(sum(part._host is not None for each in parts.values() for part in each))

    written = write_objects(Target(), arrays, {"state": {}})
    assert left == sorted(left, reverse=True)
    assert set(left) >= set(range(len(parts)))
    assert max(held) <= 4  # the parts of one array
    assert all(buffer.is_deleted() for each in buffers.values() for buffer in each if buffer is not None)
    assert not any(part._host is not None for each in parts.values() for part in each)
    assert written.root_digest == write_objects(Target(), snapshot(state()), {"state": {}}).root_digest


def test_transfers_are_ahead_of_reading_by_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copy, "AHEAD", 2 * MIB)
    transfers = Transfers()
    copies = copy_on_devices([jnp.full((MIB // 4,), number, jnp.float32) for number in range(6)])
    parts = [DevicePart(copy, transfers) for copy in copies]
    for part in parts[:5]:
        part.expect()
    assert parts[0][:2].tolist() == [0, 0]
    assert transfers._started == {parts[1], parts[2]}  # the next ones, of 2 MiB
    assert parts[4][0] == 4  # out of turn
    assert parts[1][0] == 1
    assert transfers._started == {parts[2], parts[3]}
    assert parts[5][0] == 5  # was not expected
    for part in parts:
        part.free()
    assert transfers._started == set()
    assert all(copy.is_deleted() for copy in copies)


def test_part_is_read_once() -> None:
    (copy,) = copy_on_devices([jnp.arange(6.0).reshape(2, 3)])
    part = DevicePart(copy, Transfers())
    assert part[0].tolist() == [0, 1, 2]
    assert copy.is_deleted()
    assert part[1].tolist() == [3, 4, 5]
    with pytest.raises(CheckpointError, match="read twice"):
        part[0]


def test_failed_copy_is_replaced_by_a_fetch(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The last of four devices has no memory."""
    expected = save(RunPaths(str(tmp_path / "expected"), "run"), state()).root_digest
    programs, made = device_copy._programs, []

    class NoMemory:
        def get(self, device: Any, shapes: Any) -> Any:
            if device.id == 3:
                raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\n  details")
            program = programs.get(device, shapes)
            return lambda given: made.extend(program(given)) or made[-len(given) :]

    monkeypatch.setattr(device_copy, "_programs", NoMemory())
    tree = state()
    with caplog.at_level(logging.WARNING):
        pending = begin(paths, tree)
    assert caplog.messages == [
        "no copy of the state on the devices, training waits until it is fetched: "
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."
    ]
    assert not pending.on_devices
    assert made
    assert all(copy.is_deleted() for copy in made)  # of the other devices
    overwrite(tree)
    assert pending.finish().root_digest == expected


def test_late_error_of_a_device_is_known_before_training_goes_on(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a device allocates when the program runs, and not when it is dispatched."""
    waited = []

    def wait(arrays: list[jax.Array]) -> None:
        waited.append(arrays)
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(device_copy.jax, "block_until_ready", wait)
        pending = begin(paths, state())
    assert not pending.on_devices
    assert all(copy.is_deleted() for copy in waited[0])
    pending.finish()


def test_failed_transfer_ends_the_save_alone(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, start, count = state(), Transfers._start, []

    def failing(self: Transfers, part: DevicePart, data: jax.Array) -> None:
        count.append(part)
        if len(count) == 3:
            raise JaxRuntimeError("INTERNAL: the device is lost")
        start(self, part, data)

    pending = begin(paths, tree)
    copies = [part.data for each in device_parts(pending._arrays).values() for part in each]
    monkeypatch.setattr(Transfers, "_start", failing)
    with pytest.raises(CheckpointError, match="on the device cannot be read: JaxRuntimeError: INTERNAL: the device is"):
        pending.finish()
    assert all(copy.is_deleted() for copy in copies if copy is not None)
    assert not Path(paths.checkpoint("step-7-a001")).exists()
    monkeypatch.undo()
    begin(paths, tree).finish()


def test_refused_save_frees_its_copies(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[jax.Array] = []
    original = copy_on_devices
    monkeypatch.setattr(
        "midstream_engine.checkpoint.saving.snapshot.copy_on_devices",
        lambda arrays: made.extend(original(arrays)) or list(made),
    )
    monkeypatch.setattr("midstream_engine.checkpoint.saving.snapshot._parts_by_process", lambda _: {0: [], 1: []})
    with pytest.raises(CheckpointError, match="spread over several processes"):
        begin(paths, state())
    assert made
    assert all(copy.is_deleted() for copy in made)


def test_released_arrays_have_no_memory() -> None:
    arrays = snapshot(state(), Copy.DEVICES)
    parts = device_parts(arrays)
    release(arrays)
    assert (arrays, on_devices(parts)) == ([], [])
