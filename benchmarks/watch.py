"""Watch many hosts at once, and count what that costs the machine that watches.

    python benchmarks/watch.py [--hosts 200] [--servers 8] [--training 40] [--seconds 60] [--nice 15]

The hosts are accounts behind real sshd processes on loopback: ``--servers`` of them, each of which serves its share of
the hosts over connections of their own. Every host has its own root, eight GPUs (a stand-in for nvidia-smi whose
numbers change every two seconds), and ``--training`` of them a run that logs one step a second. One process, apart
from this one, watches them all as the terminal UI does; its processor time and memory are read from the kernel, once
every host is live and ``--settle`` seconds have passed. What sshd and the probes cost is not counted: they belong to
other machines; here they run with ``--nice``, so that they do not take the processor from what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.fleet.fleet import Fleet, SshHostConfig
from midstream_core import records
from simulators.sshd import Lab, environment
from support.run_directory import RunDirectory

GPUS = 8
NVIDIA_SMI = """\
#!/bin/sh
case $1 in
--query-gpu=*) exec cat {folder}/gpus ;;
--query-compute-apps=*) echo 'GPU-0, 4242, python' ;;
*) echo '| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4 |' ;;
esac
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="what watching many hosts costs the machine that watches")
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--training", type=int, default=40, help="hosts with a run that logs one step a second")
    parser.add_argument("--settle", type=float, default=30.0, help="seconds between all hosts live and the measurement")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nice", type=int, default=10, help="of everything but the process that watches")
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)  # the process that is measured
    options = parser.parse_args()
    if options.watch:
        watch(json.loads(sys.stdin.readline()), options.settle, options.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="watch") as folder:
        print(json.dumps(measure(Path(folder), options), indent=2))


# ------------------------------------------------------------------------------------------- the machines watched


def measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Report of the watching process about itself."""
    argv = [sys.executable, __file__, "--watch", "--settle", str(options.settle), "--seconds", str(options.seconds)]
    watching = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.nice(options.nice)  # what is started from here on
    (folder / "nvidia-smi").write_text(NVIDIA_SMI.format(folder=folder))
    (folder / "nvidia-smi").chmod(0o755)
    write_gpus(folder, random.Random(1))
    lab = Lab(folder)
    try:
        servers = [
            lab.host(f"server{number}", sshd=environment(PATH=f"{folder}:{os.environ['PATH']}") + "MaxStartups 1000\n")
            for number in range(options.servers)
        ]
        hosts: dict[str, dict[str, object]] = {}
        for number in range(options.hosts):
            server = servers[number % len(servers)]
            root = folder / "roots" / str(number)
            hosts[f"host{number}"] = {
                "address": server.name,
                "ssh_config": str(server.directory / "ssh_config"),
                "root": str(root),
                "python": sys.executable,
            }
        roots = [Path(str(hosts[f"host{number}"]["root"])) for number in range(options.training)]
        runs = [RunDirectory(root, f"run-{number}") for number, root in enumerate(roots)]
        for run in runs:
            run.fence(1)
            run.status(1, records.TRAINING, 1000)
            run.rows(1, *range(1000))
        done = threading.Event()
        trainer = threading.Thread(target=train, args=(folder, runs, done))
        trainer.start()
        try:
            printed, _ = watching.communicate(json.dumps(hosts) + "\n")
        finally:
            done.set()
            trainer.join()
        return {"hosts": options.hosts, "servers": options.servers, "training": options.training, **json.loads(printed)}
    finally:
        watching.kill()
        watching.wait()
        lab.close()


def train(folder: Path, runs: list[RunDirectory], done: threading.Event) -> None:
    """One step a second and run; other numbers of the GPUs every two."""
    draw, step = random.Random(2), 1000
    while not done.wait(1.0):
        for run in runs:
            run.rows(1, step)
            run.status(1, records.TRAINING, step + 1)
        step += 1
        if step % 2 == 0:
            write_gpus(folder, draw)


def write_gpus(folder: Path, draw: random.Random) -> None:
    rows = [
        f"{index}, GPU-{index}, NVIDIA H100 80GB HBM3, 81559, {draw.randrange(81559)}, {draw.randrange(101)}, "
        f"{draw.randrange(30, 80)}, {draw.uniform(70, 700):.2f}, 700.00, 550.54.15, 9.0"
        for index in range(GPUS)
    ]
    (folder / "gpus.new").write_text("\n".join(rows) + "\n")
    os.replace(folder / "gpus.new", folder / "gpus")


# ---------------------------------------------------------------------------------------------- the one that watches


def watch(entries: dict[str, dict[str, Any]], settle: float, seconds: float) -> None:
    """Watch these hosts, and report the cost on stdout."""
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import LIVE, Snapshot
    from midstream.watch.watcher import Watcher

    fleet = Fleet(hosts={name: SshHostConfig(**entry) for name, entry in entries.items()})
    hosts = HostPool(fleet)
    watching = Watcher(fleet, hosts, interval=1.0)
    began, seen = time.monotonic(), 0

    def shown(_: Snapshot) -> None:
        nonlocal seen
        seen += 1

    watching.subscribe(shown)
    watching.start()
    while not watching.wait_for(lambda now: all(host.link == LIVE for host in now.hosts), 10.0):
        links = [host.link for host in watching.snapshot().hosts]
        print({link: links.count(link) for link in set(links)}, file=sys.stderr)
    live, connecting = time.monotonic() - began, time.process_time()
    time.sleep(settle)
    before, at, shown_before = time.process_time(), time.monotonic(), seen
    ages: list[float] = []
    while time.monotonic() < at + seconds:
        time.sleep(1.0)
        now = watching.snapshot()
        ages += [time.time() - (host.last_seen or 0.0) for host in now.hosts]
    spent, passed = time.process_time() - before, time.monotonic() - at
    now = watching.snapshot()
    ages.sort()
    result = {
        "seconds until all were live": round(live, 1),
        "CPU seconds until then": round(connecting, 1),
        "CPU, share of one core": round(spent / passed, 3),
        "memory, peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
        "threads": threading.active_count(),
        "seconds between two looks": watching.interval,
        "age of what is shown, median s": round(ages[len(ages) // 2], 2),
        "age of what is shown, 99th percentile s": round(ages[len(ages) * 99 // 100], 2),
        "snapshots a second": round((seen - shown_before) / passed, 1),
        "hosts live at the end": sum(host.link == LIVE for host in now.hosts),
        "runs shown": len(now.runs),
        "accelerators shown": sum(len(host.machine.accelerators) for host in now.hosts if host.machine),
    }
    print(json.dumps(result))
    sys.stdout.flush()
    watching.stop()
    hosts.close()


if __name__ == "__main__":
    main()
