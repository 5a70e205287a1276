"""A restored array is in memory that the first update may write, without a copy."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream_core.records import RunPaths
from midstream_engine.checkpoint.loading import part_memory
from midstream_engine.checkpoint.loading.part_memory import SMALL, PartBuffers, PartMemory
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from support.checkpoints.checkpoint_states import save


def sharding(devices: int, *spec: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), PartitionSpec(*spec))


def addresses(array: jax.Array) -> list[int]:
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize("devices", [1, 4])
def test_update_reuses_the_memory_of_a_restored_state(tmp_path: Path, devices: int) -> None:
    state = {"table": jnp.arange(3 << 20, dtype=jnp.float32).reshape(1536, 2048), "bias": jnp.arange(64.0)}
    paths = RunPaths(str(tmp_path), "r")
    directory = paths.checkpoint(save(paths, state).name)
    shardings = {"table": sharding(devices, "data"), "bias": sharding(devices, "data")}
    restored = restore_checkpoint(directory, state, shardings).tree
    before = {name: addresses(array) for name, array in restored.items()}
    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf * 2 + 1, state), donate_argnums=0)
    after = update(restored)
    assert {name: addresses(array) for name, array in after.items()} == before
    np.testing.assert_array_equal(after["table"], np.asarray(state["table"]) * 2 + 1)
    np.testing.assert_array_equal(after["bias"], np.asarray(state["bias"]) * 2 + 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "float64"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("shape", [(), (3, 5), (2, 0)])
@pytest.mark.parametrize("buffers", [0, 1])
def test_part_has_what_was_written(dtype: str, devices: int, shape: tuple[int, ...], buffers: int) -> None:
    wanted = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(jnp.dtype(dtype))
    memory = PartMemory(shape, wanted.dtype, jax.devices()[:devices], PartBuffers(buffers))
    memory.array[...] = wanted
    shards = memory.shards()
    assert [list(shard.devices()) for shard in shards] == [[device] for device in jax.devices()[:devices]]
    for shard in shards:
        np.testing.assert_array_equal(np.asarray(shard), wanted)


def test_buffers_are_not_written_while_they_are_copied() -> None:
    buffers = PartBuffers(1)
    parts = []
    for number in range(40):  # each in the buffer of the one before
        memory = PartMemory((SMALL // 4,), np.dtype(np.float32), jax.devices()[:1], buffers)
        memory.array[...] = number
        parts += memory.shards()
    buffers.settle()
    for number, part in enumerate(parts):
        assert np.all(np.asarray(part) == number)


def test_incomplete_parts_beyond_the_buffers_and_large_parts() -> None:
    buffers = PartBuffers(2)
    shapes = [(5,), (7,), (11,), (SMALL // 4 + 1,)]
    memories = [PartMemory(shape, np.dtype(np.float32), jax.devices()[:1], buffers) for shape in shapes]
    for number, memory in enumerate(memories):
        memory.array[...] = number
    parts = [memory.shards()[0] for memory in memories]
    buffers.settle()
    add = jax.jit(lambda part: part + 1, donate_argnums=0)
    for number, part in enumerate(parts):
        address = part.unsafe_buffer_pointer()
        after = add(part)
        assert after.unsafe_buffer_pointer() == address
        np.testing.assert_array_equal(after, np.full(shapes[number], number + 1, np.float32))


@pytest.mark.parametrize("size", [SMALL, SMALL + 4])
def test_memory_that_jax_adopts_is_not_written_again(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """As with a version of jax that adopts memory of any alignment."""
    monkeypatch.setattr(part_memory, "_MISALIGNMENT", 64)
    buffers = PartBuffers(2)
    parts = []
    for number in range(1, 6):
        memory = PartMemory((size // 4,), np.dtype(np.float32), jax.devices()[:1], buffers)
        memory.array[...] = number
        parts += memory.shards()
    buffers.settle()
    for number, part in enumerate(parts, 1):
        np.testing.assert_array_equal(np.asarray(part), np.full(size // 4, number, np.float32))
    assert not buffers.zeros(size).any()
