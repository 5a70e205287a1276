"""Run a process under a limit of memory, which the kernel enforces where this user may make control groups."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
