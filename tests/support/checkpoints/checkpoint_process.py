"""One of several processes that save and restore a checkpoint together, over jax.distributed on loopback.

    python tests/support/checkpoints/checkpoint_process.py PROCESS COUNT PORT ROOT ACTION [STORE]

ACTION is save (as step 7), copied-P (the same with a copy on the devices of process P, or of all with P = all, and
updates that take the memory of the state), restore, die (process 1, before it writes) or fall-P-N: step 9 is saved,
and process P is killed when it has written N objects. STORE: the gs:// prefix of the checkpoints. Prints one JSON line.
Two virtual CPU devices a process; the mesh has all of them along ``data``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from typing import Any

EMBED, MLP = 1024, 2048


def make_state(mesh: Any, put: Any) -> dict[str, Any]:
    """Return 16 MiB in chunks along embed, the same replicated, and small arrays.

    ``put(array, spec)`` places a numpy array.
    """
    import haliax as hax
    import numpy as np
    from haliax import NamedArray
    from jax.sharding import PartitionSpec as P

    random = np.random.default_rng(5)
    embed, mlp = hax.Axis("embed", EMBED), hax.Axis("mlp", MLP)

    def named(array: Any, axes: tuple[Any, ...], *spec: Any) -> Any:
        return NamedArray(put(array, P(*spec)), axes)

    wide = random.standard_normal((MLP, EMBED)).astype(np.float32)
    return {
        "wide": named(wide, (mlp, embed), None, "data"),
        "replicated": named(wide[::-1].copy(), (mlp, embed)),
        "straddled": named(wide[:512, :512].copy(), (embed.resize(512), mlp.resize(512)), "data", None),
        "bias": named(random.standard_normal(EMBED).astype(np.float32), (embed,), "data"),
        "count": np.array(7, np.int32),
    }


def fall_after(writes: int) -> None:
    """Kill this process with SIGKILL once it has written that many objects to a bucket."""
    from midstream_engine.checkpoint.stores.bucket_objects import BucketObjects

    left, original = [writes], BucketObjects.write

    def write(self: Any, path: str, blocks: Any) -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        original(self, path, blocks)

    BucketObjects.write = write  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    process, count, port = (int(word) for word in sys.argv[1:4])
    root, action, store = [*sys.argv[4:], ""][:3]
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    os.environ["JAX_PLATFORMS"] = "cpu"
    warnings.simplefilter("ignore")
    import jax
    import numpy as np
    from haliax import NamedArray
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from midstream_core.attempt.errors import CheckpointError
    from midstream_core.records import RunPaths
    from midstream_engine.checkpoint.loading import array_assembly, restore
    from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
    from midstream_engine.checkpoint.saving.save import begin_save
    from midstream_engine.checkpoint.saving.save_group import SaveGroup
    from midstream_engine.checkpoint.saving.snapshot import Copy
    from midstream_engine.config.distributed import DistributedConfig
    from midstream_engine.processes.rendezvous import rendezvous
    from support.checkpoints.checkpoint_states import PROVENANCE, STATE

    processes = rendezvous(
        DistributedConfig(f"127.0.0.1:{port}", count, process), {"MIDSTREAM_HOST": f"host-{process}"}, ""
    )
    client = processes.client
    assert client is not None
    paths, mesh = RunPaths(root, "run", store), Mesh(np.array(jax.devices()), ("data",))

    def put(array: Any, spec: Any) -> Any:
        return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])

    state = make_state(mesh, put)
    answer: dict[str, Any] = {"process": process, "devices": len(jax.devices())}
    if action == "restore":
        read = []
        original = array_assembly.ArrayAssembly.accept
        restore.ArrayAssembly.accept = lambda self, cell: (read.append(cell), original(self, cell))[1]  # pyright: ignore
        leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, NamedArray))
        shardings = [getattr(getattr(leaf, "array", leaf), "sharding", None) for leaf in leaves]
        placed = [sharding or NamedSharding(mesh, PartitionSpec()) for sharding in shardings]
        restored = restore.restore_checkpoint(paths.checkpoint("step-7-a001"), state, placed)
        for name, leaf in restored.tree.items():
            mine, theirs = getattr(leaf, "array", leaf), getattr(state[name], "array", state[name])
            if name == "count":
                assert int(np.asarray(mine.addressable_shards[0].data)) == int(theirs)
                continue
            for a, b in zip(mine.addressable_shards, theirs.addressable_shards, strict=True):
                np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))
        answer |= {"root_digest": restored.root_digest, "cells": len([cell for cell in read if len(cell) == 2])}
    else:
        group, falls = SaveGroup(client, 1), action.startswith("fall-")
        if falls and action.split("-")[1] == str(process):
            fall_after(int(action.split("-")[2]))
        pending = begin_save(
            paths,
            state,
            train_document(STATE, PROVENANCE, None),
            step=9 if falls else 7,
            attempt=1,
            epoch=1,
            copy=Copy.DEVICES if action in ("copied-all", f"copied-{process}") else Copy.HOST,
            group=group,
        )
        answer["on_devices"] = pending.on_devices
        if action.startswith("copied-"):
            arrays = {name: leaf.array for name, leaf in state.items() if isinstance(leaf, NamedArray)}
            update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
            jax.block_until_ready(update(arrays))
            assert all(array.is_deleted() for array in arrays.values())
        if action == "die" and process == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            manifest = pending.finish()
            answer |= {"root_digest": manifest.root_digest}
        except CheckpointError as error:
            answer |= {"error": str(error)}
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        os._exit(0)  # the other process has exited: a regular end would wait for it
    processes.leave()


if __name__ == "__main__":
    main()
