"""Simulated migrations with and without what no other task sees, in turns.

    python benchmarks/simulation.py [--seeds 40] [--rounds 2]

- each_update: every update, heartbeat and poll is made (``simulate.py --each-update``).
- shortened: those that no other task sees are left out, as in the suite; the stories are the same.

Seconds are processor time, user and system, for one schedule: as the simulation's summary counts them.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "tests/simulation/simulate.py"
WAYS: dict[str, tuple[str, ...]] = {"each_update": ("--each-update",), "shortened": ()}
AIM = 0.06  # seconds


def measure(seeds: int, flags: tuple[str, ...]) -> float:
    """Return the processor seconds of one schedule, the mean of so many seeds."""
    command = [sys.executable, str(PROGRAM), "--seeds", f"0:{seeds}", *flags]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"([\d.]+) s of a core each", text)
    assert found is not None, text
    return float(found.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description="simulated migrations with and without what no other task sees")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, flags in WAYS.items():
            taken[name].append(measure(options.seeds, flags))
    seconds = {name: round(statistics.median(values), 3) for name, values in taken.items()}
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "seeds": options.seeds,
                "seconds": seconds,
                "shorter": round(seconds["each_update"] / seconds["shortened"], 2),
                "aim_missed": seconds["shortened"] > AIM,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
