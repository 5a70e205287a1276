"""Plans for a checkpoint of a terabyte, from its manifest alone.

    python benchmarks/terabyte.py [--layers 80] [--hosts 256]

The manifest is that of a Llama with 70 billion parameters and Adam (float32 parameters and two moments, 0.8 TB),
spread over ``--hosts`` hosts: the grid of every array and all names and sizes are those that a save writes; hashes are
random. Each stage runs in a process of its own; ``seconds`` is its processor time without imports, ``peak_MiB`` the
peak of its resident memory with them. The aim is 5 s and 500 MiB for each.

- *read*: parse and check the manifest, as every reader does.
- *verify*: compare its arrays with its objects, and compute the root digest.
- *restore*: the chunks that one of ``--hosts`` processes reads, of every array.
- *contents*: what the operator's machine checks before it copies.
- *collect*: the items of a copy from all hosts to one, and their schedule over 16 streams.
- *plan*: the plan of a migration to as many other hosts, as ``--migrate --dry-run`` shows it: batch, memory of each
  device, route, downtime, duration. The hosts answer from processes of their own, whose time is in ``wall_seconds``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

EMBED, MLP, VOCAB, HEADS, KV_HEADS, HEAD = 8192, 28672, 128256, 64, 8, 128
STREAMS = 16
H100 = "NVIDIA H100 80GB HBM3"
MIB = 1 << 20
CONFIG = f"""
model:
  {{type: llama, num_layers: 80, hidden_dim: {EMBED}, intermediate_dim: {MLP}, seq_len: 4096, num_heads: {HEADS},
   num_kv_heads: {KV_HEADS}}}
trainer: {{mp: "p=f32,c=bfloat16", train_batch_size: 2048, num_train_steps: 1000}}
"""


def arrays(layers: int) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Axes and shapes of the parameters of a Llama of 8192 embeddings."""
    block = {
        "attn.q": (
            ("layers", "kv_heads", "q_heads", "head_size", "embed"),
            (layers, KV_HEADS, HEADS // KV_HEADS, HEAD, EMBED),
        ),
        "attn.k": (("layers", "kv_heads", "head_size", "embed"), (layers, KV_HEADS, HEAD, EMBED)),
        "attn.v": (("layers", "kv_heads", "head_size", "embed"), (layers, KV_HEADS, HEAD, EMBED)),
        "attn.o": (("layers", "embed", "heads", "head_size"), (layers, EMBED, HEADS, HEAD)),
        "mlp.gate": (("layers", "mlp", "embed"), (layers, MLP, EMBED)),
        "mlp.up": (("layers", "mlp", "embed"), (layers, MLP, EMBED)),
        "mlp.down": (("layers", "embed", "mlp"), (layers, EMBED, MLP)),
        "norm": (("layers", "embed"), (layers, EMBED)),
    }
    found = {f"blocks.{name}": value for name, value in block.items()}
    found["embeddings"] = (("vocab", "embed"), (VOCAB, EMBED))
    found["head"] = (("vocab", "embed"), (VOCAB, EMBED))
    return found


def write_manifest(path: Path, layers: int, hosts: int) -> None:
    """Write the manifest that a save over ``hosts`` hosts writes."""
    from midstream_core import records
    from midstream_core.records.manifest import FORMAT, FORMAT_VERSION
    from midstream_engine.checkpoint import zarr
    from midstream_engine.checkpoint.chunk_grid import chunk_shape, grid_of

    draw = random.Random(0)
    entries: list[records.ArrayEntry] = []
    objects: list[records.ObjectEntry] = []

    def add(path: str, size: int, host: str = "") -> None:
        objects.append(records.ObjectEntry(path, size, draw.randbytes(32).hex(), "AAAAAA==", host))

    for part in ("model", "optimizer.mu", "optimizer.nu"):
        for name, (axes, shape) in arrays(layers).items():
            full = f"{part}/{name}"
            grid = grid_of(axes, shape, "float32")
            if not grid:  # stored with other small arrays
                continue
            paths = zarr.object_paths(full, shape, grid)
            entries.append(records.ArrayEntry(full, list(axes), list(shape), "float32", list(grid), paths))
            size = 4
            for length in chunk_shape(shape, grid):
                size *= length
            for each in paths:
                if each == zarr.metadata_path(full):
                    add(each, 500)
                else:
                    add(each, size + 4, f"host-{draw.randrange(hosts)}")
    add(records.TRAIN, 2000)
    spread = [records.SpreadHost(f"host-{n}", [n], "/data/runs/r/checkpoints/step-1-a001") for n in range(hosts)]
    manifest = records.Manifest(
        FORMAT, FORMAT_VERSION, "r", 1, 1, 1, 0.0, "0" * 64,
        [each.to_json() for each in entries], [each.to_json() for each in objects],
        [each.to_json() for each in spread], "host-0",
    )  # fmt: skip
    path.write_text(json.dumps(manifest.to_json(), indent=1))


def read(path: Path) -> Any:
    from midstream_core import records

    return records.Manifest.read(str(path))


def verify(path: Path) -> dict[str, int]:
    from midstream_core import records
    from midstream_engine.checkpoint.loading.completeness import check_layout

    manifest = read(path)
    check_layout(str(path), manifest)
    records.root_digest(manifest.array_entries, {each.path: each.sha256 for each in manifest.object_entries}, {})
    return {"objects": len(manifest.objects), "bytes": manifest.size}


class OneOfMany:
    """The sharding of one process: its equal part of ``embed``, as FSDP divides every array."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> Mapping[Any, tuple[slice, ...]]:
        axis = shape.index(EMBED)
        part = shape[axis] // self.processes
        return {None: tuple(slice(3 * part, 4 * part) if each == axis else slice(None) for each in range(len(shape)))}


def restore(path: Path, hosts: int) -> dict[str, int]:
    from midstream_engine.checkpoint import zarr
    from midstream_engine.checkpoint.chunk_grid import chunks_of
    from midstream_engine.checkpoint.loading.array_assembly import ArrayAssembly

    manifest = read(path)
    sizes = {entry.path: entry.size for entry in manifest.object_entries}
    needed = []
    for entry in manifest.array_entries:
        assembly = ArrayAssembly(entry, OneOfMany(hosts))  # type: ignore[arg-type]
        needed += [
            zarr.chunk_path(entry.name, index)
            for index, box in chunks_of(entry.shape, entry.grid)
            if assembly.needs(box)
        ]
    return {"objects": len(needed), "bytes": sum(sizes[each] for each in needed)}


class Answering:
    """A host on which no object is missing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call(self, *_: Any, **__: Any) -> Callable[..., list[Any]]:
        return lambda **_: []


def contents(path: Path) -> Any:
    from midstream.transfer.endpoint import Endpoint
    from midstream.transfer.tree_contents import contents_of
    from midstream_core import records
    from midstream_host.allowlist import CHECKPOINT

    first: Any = Answering("host-0")
    return contents_of(
        Endpoint(first, "/data/runs/r/checkpoints/step-1-a001"), path.read_text(), records.MANIFEST, CHECKPOINT
    )


def collect(path: Path, hosts: int) -> dict[str, int]:
    from midstream.transfer.endpoint import Endpoint
    from midstream.transfer.link import Link
    from midstream.transfer.multi_host_copy import endpoints_of
    from midstream.transfer.route import StreamRoute
    from midstream.transfer.send_queue import SendQueue, split

    tree = contents(path)
    known: Any = {f"host-{n}": Answering(f"host-{n}") for n in range(hosts)}
    by_source = tree.with_endpoints(endpoints_of(tree, known)).by_source()
    target = Endpoint(known["host-0"], "/data/target")
    queues = [
        SendQueue(StreamRoute(source, target, Link("ssh"), None, tree.kind), deque(split(entries, 1)))  # type: ignore[arg-type]
        for source, entries in by_source
    ]
    lines = moved = 0
    open_queues = deque(queues)
    while open_queues:  # the streams take turns
        for queue in [open_queues.popleft() for _ in range(min(STREAMS, len(open_queues)))]:
            moved += sum(item["length"] for item in queue.take())
            lines += 1
            if queue.items:
                open_queues.appendleft(queue)
    return {"sources": len(queues), "requests": lines, "bytes": moved}


def plan(path: Path, hosts: int) -> dict[str, Any]:
    """Plan the migration of the run to as many other hosts, as ``--migrate RUN --to TARGET --dry-run`` does.

    The hosts are directories of this machine: each answers from a process of its own. What their probes report is
    made here: eight H100 on each.
    """
    from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.request import Request
    from midstream.migrate.planning.plan_description import describe
    from midstream.migrate.planning.planner import make_plan
    from midstream.watch.machine import Accelerator, Machine
    from midstream.watch.snapshot import LIVE, HostView, Snapshot

    root = path.parent / f"{path.stem}-hosts"
    view = write_run(root, path, hosts)
    names = [f"host-{number}" for number in range(hosts)], [f"new-{number}" for number in range(hosts)]
    accelerators = tuple(Accelerator(index, H100, 80 << 30) for index in range(8))
    machine = Machine("", "Linux", "3.11.7", 96, 0.1, 1 << 40, 1 << 39, 1 << 43, 1 << 42, 0.0, accelerators)
    views = tuple(HostView(name, "local", LIVE, time.time(), machine=machine) for name in (*names[0], *names[1]))
    fleet = Fleet(
        {each.name: LocalHostConfig(root=str(root / each.name)) for each in views},
        {"source": HostsTarget(hosts=names[0]), "target": HostsTarget(hosts=names[1])},
    )
    pool = HostPool(fleet)
    try:
        pool.prepare()
        snapshot = Snapshot(1, time.time(), views, (view,))
        found = make_plan(pool, snapshot, Request("r", "target", mode="warm"))
    finally:
        pool.close()
    lines, shape, size = describe(found), found.shape, found.estimate.checkpoint_bytes
    memory = shape.memory.partition(":")[0]
    return {"devices": shape.target_devices, "bytes": size, "memory": memory, "lines": len(lines)}


def write_run(root: Path, manifest: Path, hosts: int) -> Any:
    """Write the directory of a run that trains on ``hosts`` hosts, as the first of them has it; return its view."""
    from midstream.watch.snapshot import RunView
    from midstream_core import records
    from midstream_core.listed_checkpoint import ListedCheckpoint

    paths = records.RunPaths(str(root / "host-0"), "r")
    attempt, name = paths.attempt(1), records.checkpoint_name(1, 1)
    directory = Path(paths.checkpoint(name))
    for folder in (Path(attempt.dir), directory, Path(paths.pins)):
        folder.mkdir(parents=True)
    Path(paths.config).write_text(CONFIG)
    (directory / records.MANIFEST).write_bytes(manifest.read_bytes())
    (directory / records.TRAIN).write_text(json.dumps({"state": {"data_digest": "d" * 64}}))
    fence, devices = (
        records.Fence(1, "source"),
        [{"kind": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 << 30}] * 8 * hosts,
    )
    status = records.Status(
        records.TRAINING, 1, 0, "boot", 4242, 99, time.time(), "r", 1, 1, hosts, 1000, devices,
        data_digest="d" * 64, data_digests=["d" * 64], compiled_seconds=60.0,
    )  # fmt: skip
    lineage = records.Lineage("r").with_entry(records.LineageEntry(1, 1, "source", 8 * hosts, H100, 0))
    fence.write(paths.fence)
    lineage.write(paths.lineage)
    status.write(attempt.status())
    group = [f"host-{number}" for number in range(hosts)]
    Path(attempt.launched()).write_text(json.dumps({**records.this_process().to_json(), "group": group}))
    curve = [
        {"global_step": step, "train/loss": 2.0, "throughput/duration": 20.0, "time": 1e9 + 20 * step}
        for step in range(2)
    ]
    checkpoint = ListedCheckpoint(name, 1, 1, True, True)
    return RunView("r", "host-0", fence, lineage, 1, status, True, (checkpoint,), curve)


STAGES: dict[str, Callable[[Path, int], Any]] = {
    "read": lambda path, _: {"objects": len(read(path).objects)},
    "verify": lambda path, _: verify(path),
    "restore": restore,
    "contents": lambda path, _: {"objects": len(contents(path).objects)},
    "collect": collect,
    "plan": plan,
}


def run_stage(stage: str, path: Path, hosts: int, small: Path) -> None:
    """Print one stage's line. It runs once before on ``small``, so that imports are not counted."""
    STAGES[stage](small, 4)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    found = STAGES[stage](path, hosts)
    after, wall = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = after.ru_maxrss / 1024
    row = {"stage": stage, **found, "seconds": round(seconds, 2), "peak_MiB": round(peak)}
    print(json.dumps({**row, "wall_seconds": round(wall, 2)} if stage == "plan" else row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--hosts", type=int, default=256)
    parser.add_argument("--stage", nargs=3, metavar=("STAGE", "MANIFEST", "SMALL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        run_stage(options.stage[0], Path(options.stage[1]), options.hosts, Path(options.stage[2]))
        return
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name) / "large.json", Path(name) / "small.json"
        began = time.process_time()
        write_manifest(large, options.layers, options.hosts)
        write_manifest(small, 1, 4)
        row = {
            "stage": "manifest",
            "MiB": round(large.stat().st_size / MIB, 1),
            "seconds": round(time.process_time() - began, 2),
        }
        print(json.dumps(row), flush=True)
        for stage in STAGES:
            command = [
                sys.executable,
                __file__,
                "--hosts",
                str(options.hosts),
                "--stage",
                stage,
                str(large),
                str(small),
            ]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
