"""Save and restore one state with midstream, with plain files and with orbax-checkpoint, side by side in one run.

    python benchmarks/checkpoint.py [--mib 1024] [--rounds 5] [--devices 4] [--where DIR] [--orbax PYTHON]

The state is that of AdamW on a GPT-2-shaped model: float32 parameters and two moments, sharded over ``--devices``
virtual CPU devices along ``embed``. *Plain* is the least that the same promises cost: each device's share of each array
in a file of its own, SHA-256 and crc32c while it passes, fsync, in as many threads; read back in the same way.
``--orbax`` names an interpreter that has orbax-checkpoint (and this jax): ``python -m venv DIR && DIR/bin/pip install
orbax-checkpoint jax==...``; it sees this one's packages, too. Without it, the one that runs this is tried.

Ways are interleaved, medians are compared; all have the engine's settings of the allocator (``GLIBC_TUNABLES``). Before
each measurement as much memory as it takes is touched and freed: in a virtual machine the first touch of a page that
the host has reclaimed costs more than all that is measured. A ratio is plain's time over the way's, above 1 means
faster than plain. For ``stall`` it is the part of a synchronous save, for ``another mesh`` the multiple of the same
mesh. CPU seconds are those of the process, which neighbours on the machine disturb less. Read ratios, not rates.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "engine")]

from checkpoints.host_memory import drop_caches, peak_of, touch  # noqa: E402
from checkpoints.midstream import Midstream  # noqa: E402
from checkpoints.orbax import Orbax  # noqa: E402
from checkpoints.plain import Plain  # noqa: E402
from checkpoints.state import MIB, Case  # noqa: E402

from midstream_engine.runtime.host_memory import tunables  # noqa: E402


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
    if "GLIBC_TUNABLES" not in os.environ:
        # orbax is in another environment, which sees this one's packages.
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        environment = {**os.environ, "GLIBC_TUNABLES": tunables(), "PYTHONPATH": packages}
        words = [word for word in sys.argv[1:] if word not in ("--orbax", options.orbax)]
        python = options.orbax or sys.executable
        sys.exit(subprocess.run([python, __file__, *words], env=environment, check=False).returncode)
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
