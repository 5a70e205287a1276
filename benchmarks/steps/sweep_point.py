"""One point of a sweep, in a process of its own: ``PYTHON sweep_point.py POINT_JSON TORCH_PYTHON``.

stdout: one JSON object, with ``result`` or, where torch is not installed, ``skipped``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

# In the place of this folder, whose modules are named like the packages that they import.
sys.path[:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "engine")]

from steps.shape import SHAPES, Shape  # noqa: E402
from steps.sweep import BESIDE, SAVE, TORCH, Point  # noqa: E402

PR_SET_PDEATHSIG = 1  # of linux/prctl.h
WARM_UP, TIMED = 2, 8  # updates
DOCUMENTS = 4  # a sequence, where attention stops at their ends


def end_with_parent() -> None:
    """End this process when the sweep is killed: the next one needs the device."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    point = Point(**json.loads(sys.argv[1]))
    shape = dataclasses.replace(SHAPES[point.shape], batch=point.batch, remat=point.remat != "false")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with tempfile.TemporaryDirectory(prefix="midstream-sweep-") as name:
        measure: Callable[[Point, Shape, Path], dict[str, Any]] = measure_updates
        if point.measures == TORCH:
            measure = measure_torch
        elif point.measures == SAVE:
            measure = measure_save
        elif point.measures == BESIDE:
            measure = measure_beside
        answers.write(json.dumps(measure(point, shape, Path(name))) + "\n")
        answers.flush()


def batches(point: Point, shape: Shape) -> Callable[[], np.ndarray]:
    """Return a function that makes the next batch, int32 [batch, position]."""
    source = shape.batches()

    def next_batch() -> np.ndarray:
        batch = source.next()
        if point.documents:
            batch[:, shape.seq_len // DOCUMENTS - 1 :: shape.seq_len // DOCUMENTS] = shape.vocab - 1  # end of document
        return batch

    return next_batch


def overrides(point: Point) -> dict[str, Any]:
    """Return the point's part of the configuration."""
    values = {"data.block_cross_document_attention": point.documents, "model.gradient_checkpointing": point.remat}
    return values if point.attention == "default" else {**values, "model.attn_backend": point.attention}


def measure_updates(point: Point, shape: Shape, directory: Path) -> dict[str, Any]:
    """Measure updates of the engine's step."""
    from steps import midstream

    began, ready = time.perf_counter(), 0.0
    step, facts = midstream.start(shape, directory, overrides(point), alone=True)
    next_batch, seconds, losses = batches(point, shape), [], []
    for number in range(WARM_UP + TIMED):
        batch, start = next_batch(), time.perf_counter()
        losses.append(step(batch))
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - start)
        elif number == 0:
            ready = time.perf_counter() - began
    if not all(map(np.isfinite, losses)):
        raise SystemExit(f"a loss is not finite: {losses}")
    median = statistics.median(seconds)
    result = {
        "step_ms": round(1000 * median, 3),
        "least_ms": round(1000 * min(seconds), 3),
        "tokens_per_second": round(shape.tokens / median),
        "ready_seconds": round(ready, 1),
        "device": facts["device"],
        "loss": losses[-1],
        "versions": facts["versions"],
        **midstream.device_memory(),
    }
    if facts["peak"]:
        for name, per_token in facts["utilisation"].items():
            result[name] = round(per_token * shape.tokens / median / facts["peak"] / facts["devices"], 4)
    return {"result": result}


def measure_save(point: Point, shape: Shape, directory: Path) -> dict[str, Any]:
    """Measure saves of the state from device memory, the stall of training, and a restore to device memory.

    Training waits until the state is fetched to host memory, or with the names ``device_copy_`` until it is copied on
    the device. A save is durable after the seconds of ``saved``. The second of two of each: the first one allocates
    host memory and compiles the copy. An update takes the memory of the state while its copy is fetched, and both
    checkpoints must be the same.
    """
    import jax

    from midstream_core.records import Manifest, RunPaths
    from midstream_engine.checkpoint.array_names import flatten
    from midstream_engine.checkpoint.loading.restore import restore_checkpoint
    from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
    from midstream_engine.checkpoint.saving.save import begin_save
    from midstream_engine.checkpoint.saving.snapshot import Copy
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.config import load_config
    from steps import midstream

    plan = make_plan(load_config(midstream.flags(shape, directory, overrides(point))).config)
    state = jax.block_until_ready(plan.fresh_state())
    size = sum(array.value.nbytes for array in flatten(state).values())
    paths = RunPaths(str(directory), "sweep")
    os.makedirs(paths.dir, exist_ok=True)
    document, update = train_document({"step": 0}, {}, None), _compiled_update(state)

    def save(step: int, copy: Copy, then: Callable[[], Any] | None = None) -> tuple[Manifest, float, float]:
        """Return the manifest, and the seconds of the stall and until the save was durable."""
        began = time.perf_counter()
        pending = begin_save(paths, state, document, step=step, attempt=1, epoch=1, copy=copy)
        stall = time.perf_counter() - began
        if pending.on_devices != (copy is Copy.DEVICES):
            raise SystemExit("no array was copied on the device: it has no room, or all arrays are small")
        if then is not None:
            then()
        return pending.finish(), stall, time.perf_counter() - began

    stall = saved = restored = copy_stall = copy_saved = 0.0
    digest = ""
    for step in (1, 2):
        state = jax.block_until_ready(update(state))  # new arrays: jax fetches one only once
        manifest, stall, saved = save(step, Copy.HOST)
        digest = manifest.root_digest
        began = time.perf_counter()
        tree = restore_checkpoint(paths.checkpoint(manifest.name), plan.template, plan.shardings).tree
        jax.block_until_ready(tree)
        restored = time.perf_counter() - began
        del tree
        shutil.rmtree(paths.checkpoint(manifest.name))
    copied: dict[str, Any] = {}
    try:
        for step in (3, 4):
            manifest, copy_stall, copy_saved = save(
                step, Copy.DEVICES, then=(lambda: jax.block_until_ready(update(state))) if step == 4 else None
            )
            if manifest.root_digest != digest:
                raise ValueError("the copy on the device differs from the state")
            shutil.rmtree(paths.checkpoint(manifest.name))
        copied = {
            "device_copy_stall_seconds": round(copy_stall, 4),
            "device_copy_stall_gb_per_second": round(size / copy_stall / 1e9, 3),
            "device_copy_saved_seconds": round(copy_saved, 3),
        }
    except SystemExit as error:
        copied = {"device_copy_skipped": str(error)}
    return {
        "result": {
            "state_bytes": size,
            "saved_seconds": round(saved, 3),
            "save_gb_per_second": round(size / saved / 1e9, 3),
            "stall_seconds": round(stall, 4),
            "stall_gb_per_second": round(size / stall / 1e9, 3),
            "restore_cached_gb_per_second": round(size / restored / 1e9, 3),
            **copied,
            "device": jax.devices()[0].device_kind,
            **midstream.device_memory(),
        }
    }


def _compiled_update(state: Any) -> Callable[[Any], Any]:
    """Return an update that takes the memory of the state, as the train step does."""
    import jax
    import jax.numpy as jnp

    def changed(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf + 1

    return jax.jit(lambda tree: jax.tree.map(changed, tree), donate_argnums=0).lower(state).compile()


def measure_beside(point: Point, shape: Shape, directory: Path) -> dict[str, Any]:
    """Measure updates while a save is fetched and written, which training goes on with at once or after the fetch.

    ``lost_seconds`` are those from the begin of the save to the end of the last update that began before it was
    durable, less as many updates alone. The second of two saves each.
    """
    import jax

    from midstream_core.records import RunPaths
    from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
    from midstream_engine.checkpoint.saving.save import begin_save
    from midstream_engine.checkpoint.saving.snapshot import Copy, prepare_device_copy
    from midstream_engine.computation.programs import WorkingMemory, compile_steps
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.config import load_config
    from midstream_engine.loop.device_memory import DeviceMemory
    from steps import midstream

    plan = make_plan(load_config(midstream.flags(shape, directory, overrides(point))).config)
    memory = WorkingMemory()
    update, held = compile_steps(plan, memory=memory), [plan.fresh_state()]
    batch, mask = batches(point, shape)(), np.ones((shape.batch, shape.seq_len), np.int32)
    mask[:, -1] = 0

    def step() -> float:
        """Return the seconds of an update."""
        began = time.perf_counter()
        number = jax.device_put(np.int32(0), plan.layout.replicated())
        held[0], result = update(held[0], number, plan.cut.put(batch), plan.cut.put(mask))
        float(result.loss)
        return time.perf_counter() - began

    alone = statistics.median([step() for _ in range(WARM_UP + TIMED)][WARM_UP:])
    paths = RunPaths(str(directory), "sweep")
    os.makedirs(paths.dir, exist_ok=True)
    prepare_device_copy(held[0])()
    room = DeviceMemory(lambda: memory.bytes)
    result: dict[str, Any] = {
        "update_ms": round(1000 * alone, 3), "working_bytes": memory.bytes, "holds_copy": room.holds_copy(held[0]),
        "statistics": dict(jax.devices()[0].memory_stats() or {}),
    }  # fmt: skip
    with ThreadPoolExecutor(1) as thread:
        for number, copy in enumerate((Copy.HOST, Copy.HOST, Copy.DEVICES, Copy.DEVICES)):
            began = time.perf_counter()
            pending = begin_save(
                paths, held[0], train_document({"step": 0}, {}, None), step=number, attempt=1, epoch=1, copy=copy
            )
            stall, seconds = time.perf_counter() - began, []
            finished = thread.submit(lambda pending=pending: (pending.finish(), time.perf_counter()))
            while not (seconds and finished.done()):
                seconds.append(step())
            lost = time.perf_counter() - began - alone * len(seconds)
            manifest, durable = finished.result()
            shutil.rmtree(paths.checkpoint(manifest.name))
            result[copy.value] = {
                "copied_on_devices": pending.on_devices,
                "stall_seconds": round(stall, 4),
                "saved_seconds": round(durable - began, 3),
                "updates": len(seconds),
                "update_ms": round(1000 * statistics.median(seconds), 3),
                "lost_seconds": round(lost, 3),
            }
    return {"result": {**result, "device": jax.devices()[0].device_kind, **midstream.device_memory()}}


def measure_torch(_point: Point, shape: Shape, directory: Path) -> dict[str, Any]:
    """Measure torch's step, compiled where there is a GPU, from the same initial parameters."""
    script = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "engine")]!r}
from pathlib import Path
from steps import midstream
from steps.shape import Shape
midstream.write_parameters(Shape(**{dataclasses.asdict(shape)!r}), Path({str(directory)!r}))
"""
    python = sys.argv[2]
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode:
        return {"skipped": f"torch is not installed for {python} (hint: --torch PYTHON)"}
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True)
    command = [python, str(Path(__file__).parent / "worker.py"), "plain_torch", shape.to_json(), str(directory)]
    done = subprocess.run(command, input=f"{TIMED}\n", stdout=subprocess.PIPE, text=True, check=True)
    first, rest = map(json.loads, done.stdout.splitlines())
    median = statistics.median(rest["seconds"])
    result = {
        "step_ms": round(1000 * median, 3), "least_ms": round(1000 * min(rest["seconds"]), 3),
        "tokens_per_second": round(shape.tokens / median), "ready_seconds": round(first["ready"], 1),
        "loss": rest["losses"][-1], "versions": first["versions"],
    }  # fmt: skip
    return {"result": result}


if __name__ == "__main__":
    main()
