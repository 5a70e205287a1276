"""Save a checkpoint of step 4 in each layout that Orbax writes: ``python save_orbax_layouts.py OUT [NAME ...]``.

Each is below a folder of its name. ``two processes`` starts this program twice more.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import v1

STEP = 4


def state() -> dict[str, Any]:
    """Return a small training state."""
    return {
        "params": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.zeros(4)},
        "opt_state": {"mu": {"kernel": jnp.ones((3, 4))}, "count": jnp.array(STEP)},
        "step": jnp.array(STEP),
    }


def managed(directory: str, items: dict[str, Any] | None = None, **options: Any) -> None:
    """Save with the manager: ``items`` by name, or one item without a name."""
    with ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**options)) as manager:
        args = ocp.args.StandardSave(state()) if items is None else ocp.args.Composite(**items)
        manager.save(STEP, args=args)


def handled(directory: str, **options: Any) -> None:
    """Save one item with a handler of the given options."""
    handler = ocp.PyTreeCheckpointHandler(**options)
    path = os.path.join(directory, str(STEP))
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(state()))


def with_v1(directory: str, save: Callable[..., Any], content: Any) -> None:
    """Save with the functions of the v1 API."""
    save(os.path.join(directory, str(STEP)), content)


def trained_with_v1(directory: str) -> None:
    """Save with the v1 API's checkpointer of a run."""
    with v1.training.Checkpointer(directory) as checkpointer:
        checkpointer.save_pytree(STEP, state())


def two_processes(directory: str, content: str) -> None:
    """Save from two processes: each has half of an array (``split``), or neither can be split (``scalars``)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, __file__, directory, "--process"]
    started = [subprocess.Popen([*words, str(number), str(port), content]) for number in (0, 1)]
    if [process.wait() for process in started] != [0, 0]:
        sys.exit(1)


def process(directory: str, number: int, port: int, how: str) -> None:
    """Save as one of two processes."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))

    def spread(value: Any, *axes: str) -> jax.Array:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        return jax.make_array_from_callback(np.shape(value), sharding, lambda index: np.asarray(value)[index])

    content = {"params": {"kernel": spread(np.ones((8, 2), np.float32), "x"), "bias": spread(np.ones(3, np.float32))}}
    if how == "scalars":
        content = {"params": {"scale": spread(np.float32(2)), "bias": spread(np.ones(3, np.float32))}}
    with ocp.CheckpointManager(directory) as manager:
        manager.save(STEP, args=ocp.args.Composite(items=ocp.args.StandardSave(content)))


STANDARD = ocp.args.StandardSave
LAYOUTS: dict[str, Callable[[str], None]] = {
    "one item": managed,
    "composite": lambda out: managed(out, {"items": STANDARD(state())}),
    "composite with json": lambda out: managed(
        out, {"state": STANDARD(state()), "extra": ocp.args.JsonSave({"seed": 1})}
    ),
    "json only": lambda out: managed(out, {"extra": ocp.args.JsonSave({"seed": 1})}),
    "arrays of numpy": lambda out: managed(out, {"array": ocp.args.ArraySave(np.arange(6.0))}),
    "prefix": lambda out: managed(out, step_prefix="ckpt"),
    "prefix with hyphen": lambda out: managed(out, step_prefix="my-run"),
    "fixed length": lambda out: managed(out, step_format_fixed_length=8),
    "zarr 2": lambda out: handled(out, use_ocdbt=False),
    "zarr 2 in ocdbt": lambda out: handled(out, use_ocdbt=True, use_zarr3=False),
    "zarr 3": lambda out: handled(out, use_ocdbt=False, use_zarr3=True),
    "zarr 3 in ocdbt": lambda out: handled(out, use_ocdbt=True, use_zarr3=True),
    "v1": lambda out: with_v1(out, v1.save_pytree, state()),
    "v1 with several": lambda out: with_v1(out, v1.save_checkpointables, {"state": state(), "extra": {"seed": 1}}),
    "v1 of a run": trained_with_v1,
    "two processes": lambda out: two_processes(out, "split"),
    "two processes of scalars": lambda out: two_processes(out, "scalars"),
}


def main() -> None:
    """Save all layouts, or those that are named."""
    out, *names = sys.argv[1:]
    if names[:1] == ["--process"]:
        process(out, int(names[1]), int(names[2]), names[3])
        return
    for name in names or LAYOUTS:
        directory = Path(out).resolve() / name.replace(" ", "-")
        directory.mkdir(parents=True)
        LAYOUTS[name](str(directory))


main()
