"""A table of measurements on one accelerator that is lent for a short time.

Each point is a process of its own, because the memory of the last one and its settings must not matter. Its result is
one JSON line in the file at once. A sweep that is started again skips the points in the file: after its budget, a
kill, or the end of the machine. The most useful points come first.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steps.shape import SHAPES

SCRIPT = Path(__file__).parent / "sweep_point.py"
UPDATES, SAVE, BESIDE, TORCH = "updates", "save", "updates beside a save", "torch"
POINT_TIMEOUT = 900.0  # seconds of one point
ACCELERATOR_REMAT = ("true", "qkv+attention", "dots_with_no_batch_dims_saveable", "false")


@dataclass(frozen=True)
class Point:
    """The measurement of one process."""

    measures: str  # UPDATES of the engine's step, SAVE and restore of its state, updates BESIDE a save, compiled TORCH
    shape: str
    batch: int
    attention: str = "default"
    remat: str = "true"
    documents: bool = True  # attention stops at their ends
    preallocate: bool = False  # jax takes most of the device's memory at its start

    @property
    def key(self) -> str:
        """The point in the file."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def points(shapes: list[str], platform: str) -> Iterator[Point]:
    """Yield the points of ``shapes`` for ``platform``: gpu, tpu or cpu."""
    backends = {"gpu": ("cudnn", "triton", "xla"), "tpu": ("splash", "xla")}.get(platform, ("vanilla", "xla"))
    for name in shapes:
        batch = SHAPES[name].batch
        yield Point(UPDATES, name, batch)
        yield Point(UPDATES, name, batch, documents=False)
        if platform != "tpu":
            yield Point(TORCH, name, batch, documents=False)
        yield Point(SAVE, name, batch)
        yield Point(BESIDE, name, batch, preallocate=True)
        yield Point(UPDATES, name, batch, preallocate=True)
    for name in shapes:
        size = SHAPES[name].batch
        batches = (size, 2 * size, 4 * size, size // 2 or 1)
        for batch in batches:
            for attention, remat in itertools.product(backends, ACCELERATOR_REMAT):
                yield Point(UPDATES, name, batch, attention, remat)


def done_in(path: Path) -> set[str]:
    """Return the keys of the points in the file. A partial last line, of a sweep that was killed, does not count."""
    found = set()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.add(json.dumps(json.loads(line)["point"], sort_keys=True))
        except (ValueError, KeyError):
            continue
    return found


def sweep(
    path: Path,
    budget: float,
    wanted: Iterator[Point],
    environment: Mapping[str, str],
    *,
    torch: str,
    say: Callable[..., None],
) -> None:
    """Measure the points that are not in the file, until ``budget`` seconds are over.

    Args:
        path: The file, to which lines are appended.
        budget: Seconds.
        wanted: The points.
        environment: Of each process.
        torch: Interpreter that has torch.
        say: Prints a row.
    """
    began, known, left = time.monotonic(), done_in(path), 0
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")
    for point in dict.fromkeys(wanted):
        if point.key in known:
            continue
        remaining = budget - (time.monotonic() - began)
        row = _measured(point, remaining, environment, torch) if remaining > 0 else None
        if row is None:  # over the budget: the next sweep measures it
            left += 1
            continue
        with path.open("a") as file:
            file.write(json.dumps({"point": dataclasses.asdict(point), **row}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        say(point=dataclasses.asdict(point), **row)
    say(sweep=str(path), points_left=left, seconds=round(time.monotonic() - began, 1))


def _measured(point: Point, remaining: float, environment: Mapping[str, str], torch: str) -> dict[str, Any] | None:
    """Return the row of a point: its result, an error, or why it was skipped; None if the budget was too short."""
    own = {**environment, "XLA_PYTHON_CLIENT_PREALLOCATE": str(point.preallocate).lower()}
    began, limit = time.monotonic(), min(remaining, POINT_TIMEOUT)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), point.key, torch], env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {POINT_TIMEOUT:.0f} s"} if limit == POINT_TIMEOUT else None
    finally:
        _end(process)
    seconds = round(time.monotonic() - began, 1)
    if process.returncode:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"error": last[:500], "seconds": seconds}
    return {**json.loads(output.splitlines()[-1]), "seconds": seconds}


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its children, of which torch has one."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
