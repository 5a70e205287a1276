"""Peak resident memory of midstream's programs on the operator's machine, in one run.

    python benchmarks/operator_memory.py [--base CHECKOUT] [--rounds 3] [--rest 12]

- empty, tui: an empty Textual app, and the terminal UI with one host of this machine, ``--rest`` seconds after its
  first frame, when it has imported what it prepares in the background.
- bare, status: ``python -c pass`` (as little as a child of this program can have), and ``--status`` of the same host.
- executor: the process that executes a migration of a tiny run between two roots of this machine.

``--base`` names another checkout, whose programs are measured in turns with these ones. Peaks are the kernel's (VmHWM,
ru_maxrss).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from terminal.screen import Screen  # noqa: E402

EXECUTOR = b"midstream.migrate.migration_process"
TRAINING = ("--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 200}]")


def peak(pid: int) -> float:
    """Return the peak of a process in MB, 0 where it has exited."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(text.split("VmHWM:")[1].split()[0]) / 1000 if "VmHWM:" in text else 0.0


def environment(tree: Path, directory: Path) -> dict[str, str]:
    return {
        "MIDSTREAM_STATE": str(directory / "state"), "PYTHONPATH": f"{tree}/app:{tree}/engine",
        "PYTHONDONTWRITEBYTECODE": "",
    }  # fmt: skip


def ended(command: list[str], env: dict[str, str]) -> float:
    """Run a command; return its peak in MB."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_maxrss / 1000


def screen(command: list[str], env: dict[str, str], word: bytes, rest: float) -> float:
    shown = Screen(command, env)
    try:
        shown.until(lambda text: word in text, 200)
        shown.rest(rest)
        return peak(shown.process.pid)
    finally:
        shown.close()


def executors() -> Iterator[int]:
    """Yield the ids of processes that execute migrations."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if EXECUTOR in (folder / "cmdline").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


def executor(tree: Path, directory: Path) -> float:
    """Migrate a run between two roots of this machine; return the peak of the process that executes it."""
    directory.mkdir()
    fleet = directory / "fleet.yaml"
    lines = (f"  {name}: {{type: local, devices: 1, root: {directory}/{name}}}" for name in ("a", "b"))
    fleet.write_text("\n".join(["hosts:", *lines]) + "\n")
    env = {**os.environ, **environment(tree, directory)}
    ours = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]

    def done(*words: str) -> None:
        subprocess.run([*ours, *words], env=env, check=True, capture_output=True, timeout=900)

    done("--launch", str(ROOT / "configs/gpt2_tiny.yaml"), "--on", "a", "--run-id", "r", "--", *TRAINING)
    others = set(executors())
    words = ["--migrate", "r", "--to", "b", "--healthy-steps", "2", "--yes"]
    migration = subprocess.Popen([*ours, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    most = 0.0
    while migration.poll() is None:
        most = max([most, *(peak(pid) for pid in executors() if pid not in others)])
        time.sleep(0.1)
    assert migration.stderr is not None
    if migration.returncode:
        raise SystemExit(migration.stderr.read().decode())
    done("--stop", "r")
    return most


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--base", type=Path, metavar="CHECKOUT")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--rest", type=float, default=12.0, metavar="SECONDS")
    options = flags.parse_args()
    trees = {"now": ROOT, **({"base": options.base.resolve()} if options.base else {})}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            empty = [sys.executable, str(ROOT / "benchmarks/tui.py"), "--child", "empty"]
            found.setdefault("empty", []).append(screen(empty, {"PYTHONDONTWRITEBYTECODE": ""}, b"first", 2.0))
            found.setdefault("bare", []).append(ended([sys.executable, "-c", "pass"], {}))
            for kind, tree in trees.items():
                directory = Path(name, f"{kind}{number}")
                directory.mkdir()
                fleet = directory / "fleet.yaml"
                fleet.write_text(f"hosts: {{nano: {{type: local, root: {directory}/root}}}}\n")
                ours = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
                env = environment(tree, directory)
                found.setdefault(f"status {kind}", []).append(ended([*ours, "--status"], env))
                found.setdefault(f"tui {kind}", []).append(screen(ours, env, b"nano", options.rest))
        found["executor"] = [executor(ROOT, Path(name, "executor"))]
    megabytes = {kind: round(statistics.median(values), 1) for kind, values in found.items()}
    ratios = {f"tui {kind} / empty": round(megabytes[f"tui {kind}"] / megabytes["empty"], 2) for kind in trees}
    if options.base:
        ratios["status now / base"] = round(megabytes["status now"] / megabytes["status base"], 2)
    versions = {"python": platform.python_version(), "textual": metadata.version("textual")}
    print(json.dumps({"versions": versions, "load": os.getloadavg()[0], "mb": megabytes, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
