"""Runs of a script without torch: their curve, and the claims of their certificates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.command_line import Ended, Run

STEPS = 20000  # more than a test trains


def undisturbed(file: Path, out: Path, steps: int) -> list[float]:
    """Return the losses of the first steps of a run of the same script that nothing interrupts."""
    out.mkdir()
    argv = [sys.executable, "train.py", "--out", out, "--steps", STEPS, "--every", STEPS, "--pause", 0]
    subprocess.run([*map(str, argv), "--stop-at", str(steps)], cwd=file.parent, check=True, timeout=60)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows]


def claims_of(ended: Ended) -> dict[str, dict[str, Any]]:
    return {claim["name"]: claim for claim in ended.result["certificate"]["claims"]}


def check_curve(run: Run, file: Path, out: Path) -> dict[int, dict[str, Any]]:
    """Assert that the run's curve is that of a run that nothing interrupts, without a gap; return its rows."""
    rows = run.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert [rows[step]["train/loss"] for step in sorted(rows)] == undisturbed(file, out, len(rows))
    return rows
