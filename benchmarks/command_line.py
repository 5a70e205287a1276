"""The start of the command line beside a bare interpreter, in turns.

    python benchmarks/command_line.py [--rounds 15]

- bare: ``python -c pass`` with the same interpreter and environment.
- argparse: the same with an empty ``argparse.ArgumentParser`` that formats its help.
- help, names, version, status: ``midstream --help``, ``--print-names runs`` (each TAB of shell completion),
  ``--version``, and ``--status`` of a fleet file without hosts.

Processor seconds are user and system time of the process and its children, as the kernel counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP = "import argparse; argparse.ArgumentParser(description='x').format_help()"
AIM = 0.3  # seconds for --help


def main() -> None:
    parser = argparse.ArgumentParser(description="the start of the command line beside a bare interpreter")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        fleet = Path(directory) / "fleet.yaml"
        fleet.write_text("hosts: {}\n")
        midstream = [sys.executable, "-m", "midstream"]
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "argparse": [sys.executable, "-c", HELP],
            "help": [*midstream, "--help"],
            "names": [*midstream, "--print-names", "runs"],
            "version": [*midstream, "--version"],
            "status": [*midstream, "--fleet", str(fleet), "--status"],
        }
        environment = {**os.environ, "MIDSTREAM_STATE": directory, "COLUMNS": "100"}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, command in commands.items():
                taken[name].append(measure(command, environment))
    processor = {name: statistics.median(each[1] for each in times[1:]) for name, times in taken.items()}
    seconds = {name: statistics.median(each[0] for each in times[1:]) for name, times in taken.items()}
    found = {
        "python": platform.python_version(),
        "rounds": rounds,
        "load": os.getloadavg()[0],
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "processor_seconds": {name: round(value, 3) for name, value in processor.items()},
        "processor_seconds_to_bare": {name: round(value / processor["bare"], 1) for name, value in processor.items()},
        "help_within_aim": seconds["help"] < AIM,
    }
    print(json.dumps(found, indent=2))


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command and return (seconds, processor seconds)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
