"""From ``git clone`` to the first certificate, as the README says, downloads included.

    python benchmarks/first_certificate.py [--rounds 1]

Each round clones this repository into an empty directory and runs ``make demo HEADLESS=1`` there, with an empty home
and empty caches: packages are downloaded, installed, the run starts on two virtual devices, migrates to four, and is
certified. Times are from the clone to the line that reports the stage; bytes downloaded are those of the pinned wheels.
The git commit is the last one: changes that are not committed are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "app"), str(REPOSITORY / "engine")]

from midstream.install.install_progress import read_sizes, wheel_sizes  # noqa: E402

AIM = 180.0  # seconds, on two cores
DROPPED = ("MIDSTREAM_", "PYTHON", "VIRTUAL_ENV", "XDG_", "UV_")  # variables that a new user does not have


def main() -> None:
    parser = argparse.ArgumentParser(description="from git clone to the first certificate")
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    lock = (REPOSITORY / "locks/demo.txt").read_text(encoding="utf-8")
    uv = (REPOSITORY / "locks/uv.txt").read_text(encoding="utf-8")
    sizes = read_sizes(REPOSITORY / "locks/sizes.json")
    report = {
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "uv_installed": shutil.which("uv") is not None,
        "packages": len(wheel_sizes(lock, sizes)),
        "download_mb": round((sum(wheel_sizes(lock, sizes).values()) + sum(wheel_sizes(uv, sizes).values())) / 1e6),
        "aim_seconds": AIM,
        "rounds": [one_round() for _ in range(rounds)],
    }
    print(json.dumps(report, indent=2))


def one_round() -> dict[str, Any]:
    """Return seconds from the clone to each stage."""
    with tempfile.TemporaryDirectory(prefix="first-certificate-") as name:
        directory = Path(name)
        home, tree = directory / "home", directory / "midstream"
        home.mkdir()
        env = {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}
        env |= {"HOME": str(home), "MIDSTREAM_STATE": str(directory / "state"), "PIP_NO_CACHE_DIR": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(tree)], check=True, env=env)
        stages = {"cloned": time.monotonic() - began}
        command = ["make", "--no-print-directory", "demo", "HEADLESS=1"]
        with subprocess.Popen(command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                stage = stage_of(line)
                if stage:
                    stages.setdefault(stage, time.monotonic() - began)
        if process.returncode:
            raise SystemExit(f"make demo ended with {process.returncode}")
        stages["ended"] = time.monotonic() - began
        installed = sum(path.lstat().st_size for path in (tree / ".venv").rglob("*") if not path.is_symlink())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            **{stage: round(seconds, 1) for stage, seconds in stages.items()},
            "cpu_seconds_of_make": round(cpu, 1),
            "installed_mb": round(installed / 1e6),
        }


def stage_of(line: str) -> str:
    """Return the stage that a JSON line of the demo reports; empty for any other line."""
    try:
        value: dict[str, Any] = json.loads(line)
    except ValueError:
        return ""
    if value.get("event") == "launched":
        return "launched"
    if value.get("event") == "phase" and value.get("state") in ("done", "completed"):
        return {"prepare": "prepared", "certify": "certified"}.get(str(value.get("phase")), "")
    return ""


if __name__ == "__main__":
    main()
