"""A campaign of migrations as a program: seeded runs, several at a time, one line of results for each."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from support.migrations.migration_faults import BrokenPromiseError, Campaign

Make = Callable[[Path, Path], Campaign]


def main(script: Path, description: str, make: Make, results: Path, runs: int) -> int:
    """Run ``runs`` migrations by default, and append to ``results``. Returns 1 if a promise was broken."""
    flags = argparse.ArgumentParser(description=description.splitlines()[0])
    flags.add_argument("--runs", type=int, default=runs)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--jobs", type=int, default=1, help="runs at a time, each between hosts of its own")
    flags.add_argument("--job", type=int, default=0, help="which of the jobs this process is")
    flags.add_argument("--seconds", type=float, default=0.0, help="stop after that long; 0: when all runs are done")
    flags.add_argument("--results", type=Path, default=results)
    flags.add_argument("--only", type=int, nargs="*", help="these runs alone")
    options = flags.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts, mounts and runs are ended
    others = []
    if options.jobs > 1 and not options.job:
        others = [
            subprocess.Popen([sys.executable, str(script), *sys.argv[1:], "--job", str(job)])
            for job in range(1, options.jobs)
        ]
    code = _part(options, make)
    return max([code, *(other.wait() for other in others)])


def _part(options: argparse.Namespace, make: Make) -> int:
    """Execute the runs of one job, as many as the time permits. Returns 1 if a promise was broken.

    The broken run is written to a file beside the results, and its directory is not deleted.
    """
    began = time.monotonic()
    room = Path(tempfile.mkdtemp(prefix="midstream-moves-"))
    broken = options.results.with_suffix(".broken.jsonl")
    os.environ["MIDSTREAM_STATE"] = str(room / "state")
    campaign = make(room, Path(tempfile.gettempdir()) / "midstream-campaign-compiled")
    code, ended = 0, False
    try:
        for number in options.only or range(options.job, options.runs, options.jobs):
            if (options.seed, number) in done(options.results) | done(broken):
                continue
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            try:
                row, file = campaign.move(options.seed, number), options.results
            except (BrokenPromiseError, MidstreamError, pytest.fail.Exception) as error:
                code, file = 1, broken
                row = {"seed": options.seed, "run": number, "error": str(error), "kept": str(campaign.give_up())}
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{time.monotonic() - began:6.1f}  {json.dumps(row)}", flush=True)
        ended = True
    finally:
        campaign.close()
        if ended and not code:
            shutil.rmtree(room)
    return code


def done(results: Path) -> set[tuple[int, int]]:
    """Return ``(seed, run)`` of the results so far."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {(row["seed"], row["run"]) for row in map(json.loads, lines)}
