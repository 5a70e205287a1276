"""The start of the command line beside a bare interpreter, in turns.

    python benchmarks/command_line.py [--rounds 15]

- bare: ``python -c pass`` with the same interpreter and environment.
- argparse: the same with an empty ``argparse.ArgumentParser`` that formats its help.
- help, names, version, status: ``midstream --help``, ``--print-names runs`` (each TAB of shell completion),
  ``--version``, and ``--status`` of a fleet file without hosts.
- ten_hosts, ten_hosts_json: ``--status`` of ten local hosts, each with a run of 1,000 steps; ``first_line`` is the time
  to the first line of ``--json``.

Processor seconds are user and system time of the process and its children, as the kernel counts them; those of the
processes that local hosts fork are not in it. Python may store compiled modules, as for a user.
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
AIMS = {"help": 0.3, "ten_hosts": 0.5}  # seconds
STEPS = 1000
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="the start of the command line beside a bare interpreter")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        fleet = Path(directory) / "fleet.yaml"
        fleet.write_text("hosts: {}\n")
        ten = write_hosts(Path(directory), 10)
        midstream = [sys.executable, "-m", "midstream"]
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "argparse": [sys.executable, "-c", HELP],
            "help": [*midstream, "--help"],
            "names": [*midstream, "--print-names", "runs"],
            "version": [*midstream, "--version"],
            "status": [*midstream, "--fleet", str(fleet), "--status"],
            "ten_hosts": [*midstream, "--fleet", str(ten), "--status"],
            "ten_hosts_json": [*midstream, "--fleet", str(ten), "--status", "--json"],
        }
        environment = {**os.environ, "MIDSTREAM_STATE": directory, "COLUMNS": "100"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, command in commands.items():
                taken[name].append(measure(command, environment))
        first = statistics.median(first_line(commands["ten_hosts_json"], environment) for _ in range(rounds))
    processor = {name: statistics.median(each[1] for each in times[1:]) for name, times in taken.items()}
    seconds = {name: statistics.median(each[0] for each in times[1:]) for name, times in taken.items()}
    found = {
        "python": platform.python_version(),
        "rounds": rounds,
        "load": os.getloadavg()[0],
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "processor_seconds": {name: round(value, 3) for name, value in processor.items()},
        "processor_seconds_to_bare": {name: round(value / processor["bare"], 1) for name, value in processor.items()},
        "first_line": round(first, 3),
        "within_aim": {name: seconds[name] < aim for name, aim in AIMS.items()},
    }
    print(json.dumps(found, indent=2))


def write_hosts(folder: Path, count: int) -> Path:
    """Write a fleet file of local hosts, each with a run. Returns its path."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.run_directory import RunDirectory

    lines = ["hosts:"]
    for number in range(count):
        run = RunDirectory(folder / f"root{number}", f"run{number}")
        run.fence(1)
        run.lineage({"attempt": 1, "epoch": 1})
        run.rows(1, *range(STEPS))
        run.status(1, "training", STEPS)
        lines.append(f"  host{number}: {{type: local, root: {folder / f'root{number}'}}}")
    file = folder / "ten.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def first_line(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds from the start of a command to its first line."""
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "no line"
        taken = time.perf_counter() - began
        process.stdout.read()
    return taken


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run a command and return (seconds, processor seconds)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
