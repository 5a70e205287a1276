"""Speed of `--reshard`, beside copying the same bytes, and DeepSpeed's ds_to_universal.

    python benchmarks/reshard.py [--hidden 1024] [--layers 8] [--ranks 4] [--to 3] [--rounds 3] [--deepspeed PYTHON]
        [--base CHECKOUT]

The checkpoint, the bare copy and ds_to_universal are those of `import.py`. Measured in turn, each in a process of its
own, with the source dropped from the page cache before:

- copying: blocks past the page cache, several at a time, and waited for;
- dividing the checkpoint over another number of processes: it reads, checks every CRC-32, writes, waits for the
  disk, reads both again, compares every byte, and hashes; with ``--base`` also that of another checkout of midstream;
- with ``--deepspeed`` ds_to_universal, which writes all twice, and neither checks nor hashes nor waits for the disk;
- with ``--deepspeed`` DeepSpeed's ``load_checkpoint`` in that many processes (gloo), of both results: times are those
  of its slowest process, memory what all processes have above that before the load.

Times are medians of the rounds, processor seconds are those of all threads, memory is the highest peak.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TAG = "global_step10"
FOLDED = (("seconds", sum), ("memory", max))
LOADER = HERE / "checkpoints" / "load_deepspeed.py"
_SPEC = importlib.util.spec_from_file_location("import_benchmark", HERE / "import.py")
assert _SPEC is not None
assert _SPEC.loader is not None
imports: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(imports)


def reshard_once(source: str, target: str, ranks: str) -> dict[str, float]:
    from midstream_host.driver.reshard.reshard import reshard, tag_of

    imports.drop(source)
    with imports.Peak() as peak:
        began = time.monotonic()
        reshard(tag_of(source), target, int(ranks))
        seconds = time.monotonic() - began
    return {"seconds": seconds, "memory": peak.highest, "processor": time.process_time()}


def load(_source: str, target: str, python: str, ranks: str, universal: str) -> dict[str, float]:
    """DeepSpeed's load of a checkpoint in ``target``; ``universal``: 1 for one of ds_to_universal."""
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, str(LOADER), target]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, universal], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"the load failed:\n{done.stderr[-3000:]}")
    loads = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    assert len(loads) == int(ranks)
    return {"seconds": max(one["seconds"] for one in loads), "memory": sum(one["memory"] for one in loads)}


MEASURED = {"copy": imports.copy, "reshard": reshard_once, "universal": imports.universal, "load": load}


def apart(name: str, source: Path, *arguments: str, base: str = "") -> dict[str, float]:
    """One measurement in a process of its own, from the disk. ``base``: with that checkout's midstream."""
    target = source.parent / TAG
    imports.drop(str(source if name != "load" else target))
    command = [sys.executable, str(HERE / "reshard.py"), "--one", name, str(source), str(target), *arguments]
    environment = {**os.environ, **({"PYTHONPATH": f"{base}/engine"} if base else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one_round(source: Path, ranks: str, python: str | None, base: str) -> dict[str, dict[str, float]]:
    """Each measurement once; what they wrote is removed."""
    target = source.parent / TAG
    measured = {"copy": apart("copy", source)}
    shutil.rmtree(target)
    if base:
        measured["base"] = apart("reshard", source, ranks, base=base)
        shutil.rmtree(target)
    for name, argument in {"reshard": ranks, **({"universal": python} if python else {})}.items():
        measured[name] = apart(name, source, argument)
        if python:
            (source.parent / "latest").write_text(TAG)
            measured[f"{name}, load"] = apart("load", source, python, ranks, str(int(name == "universal")))
        shutil.rmtree(target)
    return measured


def report(size: int, medians: dict[str, dict[str, float]]) -> None:
    print(f"{'':16} {'GB/s':>6} {'of copying':>11} {'processor s':>12} {'memory MB':>10}")
    for name, median in medians.items():
        ratio = medians["copy"]["seconds"] / median["seconds"]
        processor = median["processor"] or math.nan
        print(f"{name:16} {size / median['seconds'] / 1e9:6.2f} {ratio:11.2f} {processor:12.1f} "
              f"{median['memory'] / 1e6:10.0f}")  # fmt: skip
    if "universal" not in medians:
        return
    for loads in (("", "without"), (", load", "with")):
        ways = [[medians[name], *([medians[name + loads[0]]] if loads[0] else [])] for name in ("reshard", "universal")]
        seconds, memory = ([fold(step[kind] for step in way) for way in ways] for kind, fold in FOLDED)
        print(f"--reshard is {seconds[1] / seconds[0]:.1f} x as fast as ds_to_universal, in "
              f"{memory[0] / memory[1]:.2f} of its memory, {loads[1]} the load")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Division of a checkpoint against copying and ds_to_universal.")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--to", type=int, default=3, help="the other number of processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help="a directory for some gigabytes; default: a temporary one")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="measure ds_to_universal with this interpreter")
    parser.add_argument("--base", metavar="CHECKOUT", default="", help="measure that checkout's division too")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *rest = options.one
        print(json.dumps(MEASURED[name](*rest)))
        return
    work = Path(tempfile.mkdtemp(prefix="midstream-reshard-", dir=options.work))
    try:
        source = work / "source"
        imports.make(source, options.hidden, options.layers, options.ranks)
        os.sync()
        size = sum(path.stat().st_size for path in imports.files_of(str(source)))
        rounds: dict[str, list[dict[str, float]]] = {}
        for _ in range(options.rounds):
            for name, measured in one_round(source, str(options.to), options.deepspeed, options.base).items():
                rounds.setdefault(name, []).append(measured)
        now = f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}"
        print(f"{now}, {os.cpu_count()} cores: {size / 1e9:.2f} GB, {options.ranks} -> {options.to} processes")
        report(size, {name: imports.middle(measured) for name, measured in rounds.items()})
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
