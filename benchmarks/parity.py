"""Losses of imported Levanter runs beside the curves that Levanter wrote, as the table of docs/explanation/parity.md.

    python benchmarks/parity.py [--only NAME ...] [--json PATH]

Each checkpoint of tests/fixtures/levanter/curves is imported with its data and trained for 30 updates on 1, 2 and 4
virtual CPU devices, in this process. A number is the largest relative difference of the 30 losses from those that
Levanter wrote on one device: of midstream, and of Levanter itself when it resumed the same checkpoint. *mean* is the
mean of midstream's 30 differences with their signs, the largest of the three. Levanter's numbers are in the fixtures,
so that it need not be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "engine")]
warnings.simplefilter("ignore")

from support.imports import levanter_curves  # noqa: E402


def measure(name: str, work: Path) -> dict[str, Any]:
    """Return the differences of midstream and of Levanter, by number of devices, of the reference run ``name``."""
    reference = levanter_curves.reference(name)
    directory = levanter_curves.imported(name, work)
    ours = {devices: levanter_curves.Continuation(directory, devices).train() for devices in levanter_curves.DEVICES}
    release, model, precision = name.split("-")
    return {
        "release": release, "model": model, "precision": precision,
        "midstream": {devices: curve.difference(reference.curve.losses) for devices, curve in ours.items()},
        "mean": max(abs(float(curve.differences(reference.curve.losses).mean())) for curve in ours.values()),
        "levanter": {devices: reference.curve.difference(reference.resumed[devices]) for devices in ours},
    }  # fmt: skip


def row(found: dict[str, Any]) -> str:
    """Return a line of the table."""
    numbers = [
        *found["midstream"].values(), found["mean"], *list(found["levanter"].values())[1:],
        levanter_curves.BANDS[found["precision"]],
    ]  # fmt: skip
    return f"| {found['release']} | {found['model']} | {found['precision']} | {' | '.join(map(number, numbers))} |"


def number(value: float) -> str:
    """Return a difference with two digits."""
    return f"{value:.1e}" if value else "0"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=levanter_curves.references(), help="these references alone")
    parser.add_argument("--json", help="file that gets all numbers")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or levanter_curves.references():
            print(name, "...", file=sys.stderr, flush=True)
            rows.append(measure(name, Path(folder)))
    print("\n".join([*levanter_curves.HEADER, *map(row, rows)]))
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
