"""Copy a tree between two hosts with midstream and with public tools, side by side in one run.

    python benchmarks/transfer.py [--mib 512] [--rounds 3] [--small 2000]

The target is a real sshd on loopback. midstream hashes every object while it is written, renames it when its hash
agrees and has it on the disk before it says so; the other tools do none of that, and are also timed with `sync` and
with `sha256sum` of the result. Rounds are interleaved, medians are compared. ``time_ratio`` is the
time of a way over that of midstream over ssh: above 1 means slower than midstream. Read it, not the rates.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lab.sshd import SSHD, Lab, SshServer
from midstream.fleet.config import LocalHost
from midstream.hosts.base import Host
from midstream.hosts.local import LocalMachine
from midstream.hosts.open import open_host
from midstream.transfer import copy_objects
from trees import write_tree

MIB = 1 << 20


def ways(server: SshServer, here: Host, far: Host) -> dict[str, Callable[[Path, Path], None]]:
    """How to bring a directory to another one, by name."""
    config = str(server.directory / "ssh_config")
    found: dict[str, Callable[[Path, Path], None]] = {
        "midstream, over ssh": lambda source, target: _copy(here, source, far, target),
        "midstream, local": lambda source, target: _copy(here, source, here, target),
        "cp -r": lambda source, target: _run("cp", "-r", str(source), str(target)),
    }
    if shutil.which("scp"):
        found["scp -r"] = lambda source, target: _run(
            "scp", "-q", "-r", "-F", config, str(source), f"{server.name}:{target}"
        )
    if shutil.which("rsync"):
        found["rsync -W"] = lambda source, target: _run(
            "rsync", "-rW", "-e", f"ssh -F {config}", f"{source}/", f"{server.name}:{target}/"
        )
    return found


def _copy(source: Host, source_dir: Path, target: Host, target_dir: Path) -> None:
    copy_objects(source, str(source_dir), target, str(target_dir))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _verify_like(directory: Path) -> None:
    """What a careful person types after the other tools: hash everything, and wait for the disk."""
    subprocess.run(
        [
            "sh",
            "-c",
            'find "$1" -type f -print0 | xargs -0 sha256sum > /dev/null && sync -f "$1"',
            "sh",
            str(directory),
        ],
        check=True,
    )


def measure(case: str, source: Path, room: Path, server: SshServer, rounds: int) -> None:
    here, far = LocalMachine("here", LocalHost(root=str(room))), open_host(server.name, server.config)
    far.connect()
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    seconds: dict[str, list[float]] = {}
    for round_number in range(rounds):
        for name, copy in ways(server, here, far).items():
            target = room / f"{round_number}"
            _run("sync")
            began = time.perf_counter()
            copy(source, target)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            if not name.startswith("midstream"):
                _verify_like(target)
                seconds.setdefault(f"{name}, sync and sha256sum", []).append(time.perf_counter() - began)
            shutil.rmtree(target)
    far.close()
    base = statistics.median(seconds["midstream, over ssh"])
    for name, times in seconds.items():
        median = statistics.median(times)
        row = {
            "case": case,
            "way": name,
            "MB_per_s": round(size / median / 1e6),
            "time_ratio": round(median / base, 2),
        }
        print(json.dumps(row), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--mib", type=int, default=512, help="size of the large cases")
    flags.add_argument("--small", type=int, default=2000, help="files of 64 KiB in the small case; 0: leave it out")
    flags.add_argument("--rounds", type=int, default=3)
    options = flags.parse_args()
    if not SSHD:
        sys.exit("no sshd: apt-get install openssh-server")
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as name:
        room, rng = Path(name), random.Random(0)
        lab = Lab(room / "lab")
        print(json.dumps({"cpus": os.cpu_count(), "rounds": options.rounds, "python": sys.version.split()[0]}))
        try:
            server = lab.host("far")
            block = rng.randbytes(16 * MIB)
            cases = {
                "one file": {"one": block * (options.mib // 16)},
                "files of 16 MiB": {f"{index}": rng.randbytes(16) + block[16:] for index in range(options.mib // 16)},
                "files of 64 KiB": {f"{i % 50}/{i}": rng.randbytes(65536) for i in range(options.small)},
            }
            for case, contents in cases.items():
                if contents:
                    write_tree(room / "source", contents)
                    measure(case, room / "source", room, server, options.rounds)
                    shutil.rmtree(room / "source")
        finally:
            lab.close()


if __name__ == "__main__":
    main()
