"""Save and restore one state with midstream, with plain files and with orbax-checkpoint, side by side in one run.

    python benchmarks/checkpoint.py [--mib 1024] [--rounds 5] [--devices 4] [--where DIR] [--orbax PYTHON]

The state is that of AdamW on a GPT-2-shaped model: float32 parameters and two moments, sharded over ``--devices``
virtual CPU devices along ``embed``. *Plain* is the least that the same promises cost: each device's share of each array
in a file of its own, SHA-256 and crc32c while it passes, fsync, in as many threads; read back in the same way.
``--orbax`` names an interpreter that has orbax-checkpoint (and this jax): ``python -m venv DIR && DIR/bin/pip install
orbax-checkpoint jax==...``; it sees this one's packages, too. Without it, the one that runs this is tried.

Ways are interleaved, medians are compared. Before each measurement as much memory as it takes is touched and freed: in
a virtual machine the first touch of a page that the host has reclaimed costs more than all that is measured. A ratio
is plain's time over the way's, above 1 means faster than plain. For ``stall`` it is the part of a synchronous save, for
``another mesh`` the multiple of the same mesh. CPU seconds are those of the process, which neighbours on the machine
disturb less. Read ratios, not rates.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "engine")]

MIB = 1 << 20
BLOCK = 4 * MIB


def shapes(mib: int) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Arrays of one copy of the parameters, together about ``mib / 3`` MiB: axes and shapes like those of GPT-2."""
    embed, mlp, vocab = 1024, 4096, 8192
    layer = 4 * (4 * embed * embed + 2 * embed * mlp + 2 * embed + mlp)
    layers = max(1, round((mib * MIB / 3 - 4 * vocab * embed) / layer))
    return {
        "token_embeddings": (("vocab", "embed"), (vocab, embed)),
        "blocks.attn.qkv": (("layers", "qkv", "heads", "embed"), (layers, 3, embed, embed)),
        "blocks.attn.out": (("layers", "heads", "embed"), (layers, embed, embed)),
        "blocks.mlp.up": (("layers", "mlp", "embed"), (layers, mlp, embed)),
        "blocks.mlp.down": (("layers", "embed", "mlp"), (layers, embed, mlp)),
        "blocks.ln.weight": (("layers", "embed"), (layers, embed)),
        "blocks.ln.bias": (("layers", "embed"), (layers, embed)),
    }


def drop_caches(directory: Path) -> None:
    """Files of ``directory`` out of the page cache, so that reading reads the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def touch(size: int) -> None:
    """Memory of ``size`` bytes that the host has given to this machine, and that is free."""
    import numpy as np

    gc.collect()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8).fill(1)


def memory_line(name: str) -> int:
    """Bytes that /proc/self/status reports for this process: ``VmRSS`` now, ``VmHWM`` the most since it was reset."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which this process grew at most while ``work`` ran, by the kernel's own count."""
    gc.collect()
    before = memory_line("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # resets VmHWM
    kept = work()
    grown = memory_line("VmHWM") - before
    del kept
    return grown


def measure_memory(options: argparse.Namespace, what: str) -> float:
    """Peak extra host memory as a multiple of the state, in a process that does nothing else."""
    words = [sys.executable, __file__, "--mib", str(options.mib), "--devices", str(options.devices), "--memory", what]
    if options.where:
        words += ["--where", str(options.where)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def print_memory(case: Case, what: str) -> None:
    """The part of :func:`measure_memory` that runs in the other process."""
    import jax

    way, directory = Midstream(case), case.room / "state"
    if what == "save":
        grown = peak_of(lambda: way.save_behind(directory))
    else:
        way.save(directory)
        case.template(case.mesh)
        mesh = case.other if what == "restore, another mesh" else case.mesh
        grown = peak_of(lambda: jax.block_until_ready(way.restore(directory, mesh)))
    print(grown / case.bytes)


class Case:
    """One state on one mesh, and where it is to be saved. ``save`` and ``restore`` return seconds."""

    def __init__(self, room: Path, mib: int, devices: int, *, filled: bool = True) -> None:
        import jax
        import numpy as np
        from jax.sharding import Mesh

        self.room, self.devices = room, devices
        self.mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        self.other = Mesh(np.array(jax.devices()[: 2 * devices]).reshape(devices, 2), ("data", "model"))
        self.shapes = {f"{part}.{name}": found for part in ("model", "mu", "nu") for name, found in shapes(mib).items()}
        self.state = self._fill() if filled else {}
        self.bytes = sum(value.nbytes for value in self.state.values())

    def sharding(self, name: str, mesh: Any) -> Any:
        from jax.sharding import NamedSharding, PartitionSpec

        mapped = {"embed": "data", "mlp": "model", "heads": "model"}
        axes = self.shapes[name][0]
        return NamedSharding(
            mesh, PartitionSpec(*(m if (m := mapped.get(a)) in mesh.axis_names else None for a in axes))
        )

    def _fill(self) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp

        def made(name: str, number: int) -> Any:
            shape, sharding = self.shapes[name][1], self.sharding(name, self.mesh)

            def values() -> Any:
                # Mixed indices: a generator of random numbers would take several times the array's memory.
                mixed = jnp.uint32(number)
                for axis in range(len(shape)):
                    mixed = (mixed ^ jax.lax.broadcasted_iota(jnp.uint32, shape, axis)) * jnp.uint32(2654435761)
                    mixed = mixed ^ (mixed >> 15)
                return mixed.astype(jnp.float32) * 2.0**-32

            return jax.block_until_ready(jax.jit(values, out_shardings=sharding)())

        return {name: made(name, number) for number, name in enumerate(self.shapes)}

    def template(self, mesh: Any) -> dict[str, Any]:
        import jax

        return {
            name: jax.ShapeDtypeStruct(shape, "float32", sharding=self.sharding(name, mesh))
            for name, (_, shape) in self.shapes.items()
        }


class Plain:
    """Shards as files: SHA-256 and crc32c while they pass, fsync, threads. No names, no manifest, no other mesh."""

    name = "plain"

    def __init__(self, case: Case, threads: int) -> None:
        self._case, self._threads = case, threads

    def save(self, directory: Path) -> None:
        import google_crc32c
        import numpy as np

        directory.mkdir()

        def write(path: Path, data: Any) -> None:
            raw, digest, crc = np.ascontiguousarray(data).reshape(-1).view(np.uint8), hashlib.sha256(), 0
            with open(path, "wb", buffering=0) as file:
                for start in range(0, len(raw), BLOCK):
                    block = raw[start : start + BLOCK]
                    digest.update(block.data)
                    crc = google_crc32c.extend(crc, block)
                    file.write(block.data)
                os.fsync(file.fileno())

        with ThreadPoolExecutor(self._threads) as pool:
            tasks = [
                pool.submit(write, directory / f"{name}.{number}", np.asarray(shard.data))
                for name, value in self._case.state.items()
                for number, shard in enumerate(value.addressable_shards)
            ]
            for task in tasks:
                task.result()

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        import google_crc32c
        import jax
        import numpy as np

        def read(path: Path, shape: tuple[int, ...], device: Any) -> Any:
            data, digest, crc = np.empty(shape, np.float32), hashlib.sha256(), 0
            raw = data.reshape(-1).view(np.uint8)
            with open(path, "rb", buffering=0) as file:
                done = 0
                while count := file.readinto(raw[done : done + BLOCK].data):
                    digest.update(raw[done : done + count].data)
                    crc = google_crc32c.extend(crc, raw[done : done + count])
                    done += count
            return jax.device_put(data, device)

        result = {}
        with ThreadPoolExecutor(self._threads) as pool:
            for name, leaf in self._case.template(mesh).items():
                shape = leaf.sharding.shard_shape(leaf.shape)
                path = str(directory / name)
                result[name] = (
                    leaf,
                    [
                        pool.submit(read, Path(f"{path}.{number}"), shape, device)
                        for number, device in enumerate(mesh.devices.flat)
                    ],
                )
            return {
                name: jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [t.result() for t in tasks])
                for name, (leaf, tasks) in result.items()
            }


class Midstream:
    """Checkpoints as the engine saves and restores them."""

    name = "midstream"

    def __init__(self, case: Case) -> None:
        self._case = case
        self.stall = 0.0

    def _named(self, tree: dict[str, Any]) -> dict[str, Any]:
        import haliax as hax
        from haliax import NamedArray

        return {
            name: NamedArray(value, tuple(hax.Axis(a, n) for a, n in zip(*self._case.shapes[name], strict=True)))
            for name, value in tree.items()
        }

    def begin(self, directory: Path, *, copy: bool) -> Any:
        from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
        from midstream_engine.checkpoint.saving.save import begin_save
        from midstream_engine.records import RunPaths

        paths = RunPaths(str(directory), "bench")
        os.makedirs(paths.dir, exist_ok=True)
        return begin_save(
            paths,
            self._case_tree(),
            train_document({"step": 1}, {}, None),
            step=1,
            attempt=1,
            epoch=1,
            copy=copy,
        )

    def _case_tree(self) -> dict[str, Any]:
        return self._named(self._case.state)

    def save(self, directory: Path) -> None:
        self.begin(directory, copy=False).finish()

    def save_behind(self, directory: Path) -> None:
        """As the training loop does: with a snapshot that the state does not share."""
        began = time.perf_counter()
        pending = self.begin(directory, copy=True)
        self.stall = time.perf_counter() - began
        pending.finish()

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        from midstream_engine.checkpoint.loading.restore import restore_checkpoint

        template = self._case.template(mesh)
        shardings = {name: leaf.sharding for name, leaf in template.items()}
        where = directory / "runs/bench/checkpoints/step-1-a001"
        return restore_checkpoint(str(where), self._named(template), shardings).tree


class Orbax:
    """StandardCheckpointer, as its documentation shows it. It hashes nothing; OCDBT, its default, compresses."""

    def __init__(self, case: Case, ocdbt: bool) -> None:
        import orbax.checkpoint as ocp

        self.name = f"orbax {ocp.__version__}{'' if ocdbt else ', no OCDBT'}"
        self._case = case
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=True)
        self._checkpointer: Any = ocp.Checkpointer(handler)

    def save(self, directory: Path) -> None:
        self._checkpointer.save(str(directory), self._case.state)

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        template = self._case.template(mesh)
        arguments = ocp.checkpoint_utils.construct_restore_args(template)
        return self._checkpointer.restore(str(directory), item=template, restore_args=arguments)


def timed(function: Any, *arguments: Any) -> float:
    import jax

    began = time.perf_counter()
    jax.block_until_ready(jax.tree.map(lambda leaf: leaf, function(*arguments)))
    return time.perf_counter() - began


def measure(case: Case, ways: list[Any], rounds: int) -> dict[str, dict[str, float]]:
    """Seconds by way and measure, medians over the rounds after a first one that warms up."""
    seconds: dict[tuple[str, str], list[float]] = {}

    def note(way: str, what: str, value: float, number: int) -> None:
        if number:
            seconds.setdefault((way, what), []).append(value)

    for number in range(rounds + 1):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:  # the order makes a difference
            directory = case.room / "state"
            os.sync()
            touch(case.bytes * 3 // 2)
            began = time.perf_counter()
            spent = time.process_time()
            note(way.name, "save", timed(way.save, directory), number)
            note(way.name, "save, CPU", time.process_time() - spent, number)
            os.sync()  # orbax leaves that to the system
            note(way.name, "save, on the disk", time.perf_counter() - began, number)
            drop_caches(directory)
            touch(case.bytes * 5 // 2)  # the page cache, too
            note(way.name, "restore", timed(way.restore, directory, case.mesh), number)
            touch(case.bytes * 3 // 2)
            spent = time.process_time()
            note(way.name, "restore, cached", timed(way.restore, directory, case.mesh), number)
            note(way.name, "restore, CPU", time.process_time() - spent, number)
            if way.name != "plain":
                touch(case.bytes * 3 // 2)
                note(way.name, "restore, another mesh", timed(way.restore, directory, case.other), number)
            shutil.rmtree(directory)
            if isinstance(way, Midstream):
                os.sync()
                touch(case.bytes * 3 // 2)
                note(way.name, "save behind", timed(way.save_behind, directory), number)
                note(way.name, "stall", way.stall, number)
                shutil.rmtree(directory)
    found: dict[str, dict[str, float]] = {}
    for (way, what), values in seconds.items():
        found.setdefault(way, {})[what] = statistics.median(values)
    return found


def report(found: dict[str, dict[str, float]]) -> None:
    plain = found["plain"]
    for way, values in found.items():
        ratios = {f"{what} / plain": plain[what] / values[what] for what in plain if way != "plain"}
        if "restore, another mesh" in values:
            ratios["another mesh / same mesh"] = values["restore, another mesh"] / values["restore, cached"]
        if "stall" in values:
            ratios["stall / save"] = values["stall"] / values["save"]
            ratios |= {key: values.pop(key) for key in list(values) if key.startswith("extra memory")}
        row = {
            "way": way,
            "ratios": {key: round(value, 3) for key, value in ratios.items()},
            "seconds": {key: round(value, 3) for key, value in values.items()},
        }
        print(json.dumps(row), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--mib", type=int, default=1024, help="size of the state")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--devices", type=int, default=4)
    flags.add_argument(
        "--where", type=Path, help="a directory on the disk to measure (default: the system's temporary)"
    )
    flags.add_argument("--memory", help=argparse.SUPPRESS)  # what a process of its own is to measure
    flags.add_argument("--orbax", metavar="PYTHON", help="an interpreter with orbax-checkpoint")
    options = flags.parse_args()
    if options.orbax and os.path.realpath(sys.executable) and options.orbax != sys.executable:
        # orbax is in another environment: run there, with this one's packages too.
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        environment = {**os.environ, "PYTHONPATH": packages}
        words = [word for word in sys.argv[1:] if word not in ("--orbax", options.orbax)]
        sys.exit(subprocess.run([options.orbax, __file__, *words], env=environment, check=False).returncode)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={2 * options.devices}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import warnings

    warnings.filterwarnings("ignore")
    import jax
    import numpy as np
    import tensorstore

    from midstream_engine.checkpoint.bounded_pool import THREADS

    with tempfile.TemporaryDirectory(prefix="midstream-bench-", dir=options.where) as name:
        case = Case(Path(name), options.mib, options.devices)
        if options.memory:
            print_memory(case, options.memory)
            return
        ways: list[Any] = [Plain(case, THREADS), Midstream(case)]
        try:
            ways += [Orbax(case, False), Orbax(case, True)]
        except ImportError:
            print("no orbax-checkpoint here: --orbax PYTHON names an interpreter that has it", file=sys.stderr)
        print(
            json.dumps(
                {
                    "state_MiB": case.bytes // MIB,
                    "cpus": os.cpu_count(),
                    "threads": THREADS,
                    "rounds": options.rounds,
                    "devices": options.devices,
                    "python": sys.version.split()[0],
                    "jax": jax.__version__,
                    "numpy": np.__version__,
                    "tensorstore": getattr(tensorstore, "__version__", ""),
                }
            ),
            flush=True,
        )
        found = measure(case, ways, options.rounds)
        for what in ("save", "restore", "restore, another mesh"):
            found["midstream"][f"extra memory in {what} / state"] = measure_memory(options, what)
        report(found)


if __name__ == "__main__":
    main()
