"""A restored array is in memory that the first update may write, without a copy."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from midstream_engine.checkpoint.loading.part_memory import PartBuffers, PartMemory
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.records import RunPaths
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
