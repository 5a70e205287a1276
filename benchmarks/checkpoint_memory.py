"""Save and restore a state within a limit of memory, which the kernel enforces.

    python benchmarks/checkpoint_memory.py [--gib 16] [--limit-gib 24] [--devices 4] [--where DIR]

The state is that of checkpoint.py. One process saves it and continues to train, another one restores it, each in a
control group where this user may make one. The kernel's count is checked in any case: exit code 1 if more was used.
``shortage`` says why the save waited for want of memory; empty: it did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkpoints.host_memory import memory_line
from checkpoints.midstream import Midstream
from checkpoints.state import Case

_TOPS = (  # of versions 1 and 2: directory, file of the limit, file of the most that was used
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
)


@contextlib.contextmanager
def control_group(limit: int) -> Iterator[Path | None]:
    """Context manager: a control group with ``limit`` bytes of memory; None where this user may make none."""
    for top, limit_file, _ in _TOPS:
        group = Path(top, f"midstream-bench-{os.getpid()}")
        try:
            group.mkdir()
            (group / limit_file).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield None


def run_limited(command: list[str], limit: int) -> dict[str, Any]:
    """Return the JSON object that ``command`` prints last, with ``exit`` and how the limit was enforced."""
    with control_group(limit) as group:
        enter = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group)] if group else []
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"error": done.stderr[-1500:]}
        found |= {"exit": done.returncode, "limit": "control group" if group else "counted only"}
        if group is not None:
            for _, _, name in _TOPS:
                with contextlib.suppress(OSError):
                    found["control_group_GiB"] = round(int((group / name).read_text()) / (1 << 30), 3)
        return found


def bare_update(state: dict[str, Any], rate: Any) -> dict[str, Any]:
    """Arithmetic of AdamW on the complete state, with a gradient that is a part of the parameters."""
    import jax.numpy as jnp

    after = {}
    for name in [name for name in state if name.startswith("model.")]:
        key = name.removeprefix("model.")
        value, mu, nu = (state[f"{part}.{key}"] for part in ("model", "mu", "nu"))
        gradient = 0.01 * value + rate
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.99 * nu + 0.01 * gradient * gradient
        after |= {name: value - rate * mu / (jnp.sqrt(nu) + 1e-8), f"mu.{key}": mu, f"nu.{key}": nu}
    return after


def print_limited(options: argparse.Namespace) -> None:
    """Save a state and train on, or restore it, in this process. Print what that took."""
    import jax
    import numpy as np

    from midstream_engine.loop.copy_memory import memory_shortage

    case = Case(options.where, round(options.gib * 1024), options.devices, filled=options.process == "save")
    way, directory, row = Midstream(case), options.where / "state", {}
    began = time.perf_counter()
    if options.process == "save":
        shardings = {name: value.sharding for name, value in case.state.items()}
        update = jax.jit(bare_update, donate_argnums=0, out_shardings=shardings)
        case.state = jax.block_until_ready(update(case.state, np.float32(1e-3)))
        shortage = memory_shortage(case.state)
        began = time.perf_counter()
        pending = way.begin(directory, copy=not shortage)
        waited = time.perf_counter() - began
        pending.finish()
        seconds = time.perf_counter() - began
        row = {"shortage": shortage, "waited": round(seconds if shortage else waited, 2)}
        del pending
        case.state = jax.block_until_ready(update(case.state, np.float32(1e-3)))
    else:
        jax.block_until_ready(way.restore(directory, case.mesh))
        seconds = time.perf_counter() - began
    row |= {"seconds": round(seconds, 2), "peak_GiB": round(memory_line("VmHWM") / (1 << 30), 3)}
    print(json.dumps(row), flush=True)


def main() -> None:
    """Run the benchmark, or one of its two processes."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--gib", type=float, default=16.0, help="size of the state")
    flags.add_argument("--limit-gib", type=float, default=24.0)
    flags.add_argument("--devices", type=int, default=4)
    flags.add_argument("--where", type=Path, help="a directory on the disk to use (default: the system's temporary)")
    flags.add_argument("--process", choices=("save", "restore"), help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.process:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={2 * options.devices}"
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        from midstream_engine.runtime.host_memory import keep_host_memory

        keep_host_memory()
        return print_limited(options)
    limit, within = round(options.limit_gib * (1 << 30)), True
    with tempfile.TemporaryDirectory(prefix="midstream-bench-", dir=options.where) as name:
        for what in ("save", "restore"):
            words = ["--gib", str(options.gib), "--devices", str(options.devices), "--where", name]
            found = run_limited([sys.executable, "-W", "ignore", __file__, *words, "--process", what], limit)
            fits = found["exit"] == 0 and found["peak_GiB"] <= options.limit_gib
            within = within and fits
            print(json.dumps({"what": what, "fits": fits, "GiB": options.gib, "limit_GiB": options.limit_gib, **found}))
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
