"""Speed of `--reshard`, beside copying the same bytes, and DeepSpeed's ds_to_universal.

    python benchmarks/reshard.py [--hidden 1024] [--layers 8] [--ranks 4] [--to 3] [--rounds 3] [--deepspeed PYTHON]

The checkpoint, the bare copy and ds_to_universal are those of `import.py`. Measured in turn, each in a process of its
own, with the source dropped from the page cache before:

- copying: blocks past the page cache, several at a time, and waited for;
- dividing the checkpoint over another number of processes: it reads, checks every CRC-32, hashes, writes, waits for the
  disk, reads what it wrote, and hashes again;
- with ``--deepspeed`` ds_to_universal, which writes all twice, and neither checks nor hashes nor waits for the disk.
  DeepSpeed's load of what it wrote is not added.

Times are medians of the rounds, memory the highest peak.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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
    return {"seconds": seconds, "memory": peak.highest}


MEASURED = {"copy": imports.copy, "reshard": reshard_once, "universal": imports.universal}


def apart(name: str, source: Path, *arguments: str) -> dict[str, float]:
    """One measurement in a process of its own, from the disk; what it wrote is removed."""
    target = source.parent / "target"
    imports.drop(str(source))
    command = [sys.executable, str(HERE / "reshard.py"), "--one", name, str(source), str(target), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    shutil.rmtree(target, ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(size: int, medians: dict[str, dict[str, float]]) -> None:
    ours = medians["reshard"]
    print(f"{'':16} {'GB/s':>6} {'of copying':>11} {'memory MB':>10}")
    for name, median in medians.items():
        ratio = medians["copy"]["seconds"] / median["seconds"]
        print(f"{name:16} {size / median['seconds'] / 1e9:6.2f} {ratio:11.2f} {median['memory'] / 1e6:10.0f}")
    if "universal" in medians:
        theirs = medians["universal"]
        faster, memory = theirs["seconds"] / ours["seconds"], ours["memory"] / theirs["memory"]
        print(f"--reshard is {faster:.1f} x as fast as ds_to_universal, in {memory:.2f} of its memory")


def main() -> None:
    parser = argparse.ArgumentParser(description="Division of a checkpoint against copying and ds_to_universal.")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--to", type=int, default=3, help="the other number of processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help="a directory for some gigabytes; default: a temporary one")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="measure ds_to_universal with this interpreter")
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
            rounds.setdefault("copy", []).append(apart("copy", source))
            rounds.setdefault("reshard", []).append(apart("reshard", source, str(options.to)))
            if options.deepspeed:
                rounds.setdefault("universal", []).append(apart("universal", source, options.deepspeed))
        now = f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}"
        print(f"{now}, {os.cpu_count()} cores: {size / 1e9:.2f} GB, {options.ranks} -> {options.to} processes")
        report(size, {name: imports.middle(measured) for name, measured in rounds.items()})
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
