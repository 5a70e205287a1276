"""The terminal UI with 1,000 hosts and 100,000 runs, in a terminal of its own.

    python benchmarks/fleet_scale.py [--hosts 1000] [--runs 100] [--keys 40] [--seconds 45]
    python benchmarks/fleet_scale.py --interactive   # the same fleet in this terminal, to use by hand

Simulated probes report to the store in the lines that real ones write, from a thread of the same process: first every
host with its ``--runs`` runs, one of which trains; then each host once in the interval that a watcher of as many hosts
polls at, with a status and a row of metrics of the run that trains. The rest have ended.

- first: from the start of the interpreter to the first text of the fleet screen; an empty Textual app beside it.
- filled: until all runs are counted; the probes' own lines are made before.
- keys: from a key in the list of runs to the selected row's repaint, while hosts report.
- filter: from a key in the filter line to the count of the runs that pass.
- slowest: of other keys (sort, group, hide, open, back, help, verify), from the key to the first repaint; 0.1 s after a
  key no other repaint is due.
- quit: from the key to the end of the process, while all checkpoints are verified.
- memory, processor: resident memory, and share of one core while hosts report and no key is pressed; the kernel's.
- status: `--status --json` of the same fleet, its lines written to a pipe: seconds from the first report of a host to
  the first line and to the end, and the most memory that the command had. Four threads report as fast as they can.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from terminal.screen import Screen

from tui import ROOT, WORDS, empty_app, versions  # pyright: ignore (the folder of this file is on the path)

AIMS = {
    "slowest_key_ms": 300,
    "quit_seconds": 2,
    "filter_p95_ms": 300,
    "keys_more_ms": 50,
    "mb": 600,
    "processor_share": 0.25,
}
OTHER_KEYS = ("o", "o", "o", "O", "b", "b", "b", "G", "g", "f", "f", "\r", "2", "\x1b", "?", "\x1b", "1", "o", "2", "V")
ROWS = 20  # of metrics of each run
PATIENCE = 300.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="the terminal UI with many hosts and runs")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=100, help="on each host")
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=45.0, help="for which processor time is measured")
    parser.add_argument("--only", default="screen,status", help="one of screen, status")
    parser.add_argument("--interactive", action="store_true", help="show the fleet in this terminal; measure nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "empty":
        empty_app()
    elif options.child == "status":
        run_status(options.hosts, options.runs)
    elif options.child or options.interactive:
        run_fleet(options.hosts, options.runs)
    else:
        found: dict[str, Any] = {"versions": versions()}
        for part in options.only.split(","):
            found[part] = measure(options) if part == "screen" else measure_status(options)
        print(json.dumps(found, indent=2))


def started(kind: str, options: argparse.Namespace) -> Screen:
    words = [sys.executable, __file__, "--child", kind, "--hosts", str(options.hosts), "--runs", str(options.runs)]
    return Screen(words, {"PYTHONDONTWRITEBYTECODE": ""})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    empty_first, empty_keys = 0.0, [0.0]
    for _ in range(2):  # the first start compiles the modules
        empty = started("empty", options)
        empty_first = empty.until(lambda text: WORDS[0].encode() in text) - empty.began
        empty_keys = []
        for number in range(options.keys):
            pressed = empty.press("]")
            word = WORDS[(number + 1) % 2].encode()
            empty_keys.append(empty.until(lambda text, word=word: word in text) - pressed)
        empty.close()
    screen = started("fleet", options)
    first = screen.until(lambda text: b"Runs" in text) - screen.began
    count = str(options.hosts * options.runs).encode()
    filled = screen.until(lambda text: count in text, PATIENCE) - screen.began
    screen.rest(15)
    before = screen.cpu_seconds
    screen.rest(options.seconds)
    share = (screen.cpu_seconds - before) / options.seconds
    keys = list(moves(screen, options.keys))
    filters = list(filter_keys(screen, options))
    megabytes = round(screen.megabytes)
    others = {f"{number} {key!r}": seconds for number, (key, seconds) in enumerate(other_keys(screen))}
    slowest = max(others, key=others.__getitem__)
    pressed = screen.press("q")
    screen.ended(PATIENCE)
    quit_seconds = time.perf_counter() - pressed
    found = {
        "hosts": options.hosts,
        "runs": options.hosts * options.runs,
        "first_seconds": round(first, 2),
        "first_to_empty": round(first / empty_first, 2),
        "filled_seconds": round(filled, 1),
        "keys_median_ms": round(1000 * statistics.median(keys), 1),
        "keys_p95_ms": _p95(keys),
        "keys_more_ms": round(_p95(keys) - _p95(empty_keys), 1),
        "filter_median_ms": round(1000 * statistics.median(filters), 1),
        "filter_p95_ms": _p95(filters),
        "slowest_key": slowest,
        "slowest_key_ms": round(1000 * others[slowest], 1),
        "quit_seconds": round(quit_seconds, 2),
        "mb": megabytes,
        "processor_share": round(share, 3),
    }
    screen.close()
    return {**found, "within_aim": {name: found[name] <= aim for name, aim in AIMS.items()}}


def measure_status(options: argparse.Namespace) -> dict[str, Any]:
    words = [sys.executable, __file__, "--child", "status", "--hosts", str(options.hosts), "--runs", str(options.runs)]
    first, count, size = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "MIDSTREAM_STATE": state}
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            first = first or time.monotonic()
            count, size = count + 1, size + len(line)
        end = time.monotonic()
        facts = json.loads(child.stderr.read().splitlines()[-1])
        child.wait()
    return {
        "lines": count,
        "written_mb": round(size / 1e6),
        "first_line_seconds": round(first - facts["reported"], 2),
        "seconds": round(end - facts["reported"], 1),
        "processor_seconds": round(facts["processor"], 1),
        "peak_mb": round(facts["peak_mb"]),
    }


def _p95(times: list[float]) -> float:
    return round(1000 * statistics.quantiles(times, n=20)[-1], 1)


def moves(screen: Screen, keys: int) -> Iterator[float]:
    """Move down and up in the list of runs: the seconds until the selected run's name is written."""
    chance = random.Random(1)
    for number in range(keys):
        key, name = ("j", b"live0001") if number % 2 == 0 else ("k", b"live0000")
        pressed = screen.press(key)
        yield screen.until(lambda text, name=name: name in text, PATIENCE) - pressed
        screen.rest(0.05 + 0.4 * chance.random())


def filter_keys(screen: Screen, options: argparse.Namespace) -> Iterator[float]:
    """Type filters: the seconds until the number of runs that pass is written."""
    total = options.hosts * options.runs
    for _ in range(max(1, options.keys // 4)):
        screen.press("/")
        screen.rest(0.3)
        for text, passing in (("live", options.hosts), ("00", None), ("1", None), ("2", None)):
            typed = {"live": "live", "00": "live00", "1": "live001", "2": "live0012"}[text]
            if passing is None:
                passing = sum(f"live{number:04}".startswith(typed) for number in range(options.hosts))
            pressed = screen.press(text)
            shown = f"{passing} of {total}".encode()
            yield screen.until(lambda written, shown=shown: shown in written, PATIENCE) - pressed
            screen.rest(0.2)
        screen.press("\x1b")
        screen.until(lambda written: str(total).encode() in written, PATIENCE)
        screen.rest(0.3)


def other_keys(screen: Screen) -> Iterator[tuple[str, float]]:
    """Press each key once: the seconds until something is written."""
    for key in OTHER_KEYS:
        screen.rest(1.0)
        pressed = screen.press(key)
        yield key, screen.until(bool, PATIENCE) - pressed


# ------------------------------------------------------------------------------------------- the program


def run_fleet(hosts: int, runs: int) -> None:
    sys.path[0:0] = [str(ROOT / "tests")]
    from midstream.tui.app import MidstreamApp
    from midstream.tui.state.saved_layout import SavedLayout
    from support.tui.prepared_actions import PreparedActions

    fleet = SimulatedProbes(hosts, runs)
    app = MidstreamApp(fleet, PreparedActions(), layout=SavedLayout(), after_first_frame=fleet.start)
    app.run_alone()


def run_status(hosts: int, runs: int) -> None:
    """Run `--status --json`; write to stderr when the first host reported, and what the command used."""
    from concurrent.futures import ThreadPoolExecutor

    from midstream.fleet.fleet import Fleet, SshHostConfig
    from midstream.headless.fleet import status
    from midstream.output import Output
    from midstream.watch.feeds import host_feed

    reported: list[float] = []
    pool = ThreadPoolExecutor(4)

    class Feed:
        """Feed of a simulated host."""

        begun = False

        def __init__(self, name: str, _hosts: Any, store: Any, _interval: float) -> None:
            self._name, self._store = name, store

        def start(self) -> None:
            pool.submit(self._report)

        def _report(self) -> None:
            self.begun = True
            for line in first_lines(int(self._name[4:]), self._name, runs):
                self._store.take(self._name, json.loads(line))
            reported.append(time.monotonic())

        def stop(self) -> None: ...
        def join(self, _deadline: float) -> None: ...
        def tick(self) -> None: ...
        def set_interval(self, _seconds: float) -> None: ...

    host_feed.HostFeed = Feed
    address = SshHostConfig(address="127.0.0.1", root="/midstream")
    fleet = Fleet({f"host{number:04}": address for number in range(hosts)}, path="/fleet.yaml")
    status.status(fleet, argparse.Namespace(filter=None), Output(True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    pool.shutdown()
    facts = {"reported": reported[0], "processor": time.process_time(), "peak_mb": peak}
    print(json.dumps(facts), file=sys.stderr)


class SimulatedProbes:
    """A store of many hosts, and a thread that reports to it as their probes do."""

    def __init__(self, hosts: int, runs: int) -> None:
        from midstream.watch.feeds.poll_interval import PollInterval
        from midstream.watch.snapshot_store import SnapshotStore

        self._names = [f"host{number:04}" for number in range(hosts)]
        self._runs = runs
        self._interval = PollInterval(1.0, hosts).seconds
        self._store = SnapshotStore(dict.fromkeys(self._names, "ssh"))
        self._callbacks: list[Callable[..., Any]] = []

    def start(self) -> None:
        threading.Thread(target=self._report_all, daemon=True).start()

    def snapshot(self) -> Any:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _report_all(self) -> None:
        published = time.monotonic()
        for number, host in enumerate(self._names):
            for line in first_lines(number, host, self._runs):
                self._store.take(host, json.loads(line))
            if time.monotonic() - published > 0.25:  # as the watcher batches changes
                self._publish()
                published = time.monotonic()
        self._publish()
        gc.collect()
        step = 1000
        while True:
            step += 1
            began = time.monotonic()
            for number, host in enumerate(self._names):
                time.sleep(max(0.0, began + self._interval * number / len(self._names) - time.monotonic()))
                for line in next_lines(number, step):
                    self._store.take(host, json.loads(line))
                if time.monotonic() - published > 0.25:
                    self._publish()
                    published = time.monotonic()

    def _publish(self) -> None:
        for callback in tuple(self._callbacks):
            callback()


def first_lines(number: int, host: str, runs: int) -> Iterator[str]:
    """The lines of a probe's first poll."""
    unit = {"kind": "NVIDIA H100", "memory_total": 80 << 30, "memory_used": 60 << 30, "utilization": 0.9}
    accelerators = [{"index": index, **unit} for index in range(8)]
    yield json.dumps({"event": "hello", "hostname": host, "platform": "Linux", "python": "3.11.7", "cpus": 96})
    for index in range(runs):
        name = f"live{number:04}" if index == 0 else f"ended{number:04}-{index:02}"
        for line in run_lines("training" if index == 0 else "finished"):
            yield line.replace("RUN", name).replace("HOST", host)
    yield json.dumps(
        {
            "event": "beat", "time": time.time(), "cpu_used": 0.5, "accelerators": accelerators,
            "memory_total": 1 << 40, "memory_used": 1 << 39, "disk_total": 1 << 42, "disk_free": 1 << 41,
        }
    )  # fmt: skip


@functools.cache
def run_lines(state: str) -> tuple[str, str]:
    """The lines of a run in a probe's first poll, named RUN on HOST."""
    text = "".join(row(step) for step in range(1001 - ROWS, 1001))
    metrics = {"run": "RUN", "attempt": 1, "inode": 1, "offset": 0, "end": len(text), "text": text}
    return json.dumps(run_line("RUN", "HOST", state, 1000)), json.dumps({"event": "metrics", **metrics})


def next_lines(number: int, step: int) -> Iterator[str]:
    """The lines of a later poll: what has changed."""
    name, text = f"live{number:04}", row(step)
    yield json.dumps({"event": "run", "run": name, "status": status_of(name, "training", step)})
    yield json.dumps(
        {"event": "metrics", "run": name, "attempt": 1, "inode": 1, "offset": step, "end": step + 1, "text": text}
    )
    yield json.dumps({"event": "beat", "time": time.time(), "cpu_used": round(0.5 + (step % 7) / 100, 2)})


def row(step: int) -> str:
    value = 2 + 1 / (1 + step)
    return json.dumps({"global_step": step, "time": 1e9 + step, "train/loss": value, "grad/norm/total": value}) + "\n"


def status_of(name: str, state: str, step: int) -> dict[str, Any]:
    from midstream_engine import records

    status = records.Status(
        state, step, 0, "boot", 4242, 99, time.time(), name, 1, 1, num_train_steps=2000,
        devices=[{"kind": "NVIDIA H100", "platform": "gpu", "memory_bytes": 80 << 30}] * 8,
        versions={"jax": "0.10.2", "python": "3.11.7"}, root_digest="3f9a1c52e07b4d86" * 4,
    )  # fmt: skip
    return status.to_json()


def run_line(name: str, host: str, state: str, step: int) -> dict[str, Any]:
    from midstream_engine import records

    entry = records.LineageEntry(1, 1, host, 8, "NVIDIA H100", 0, None, None, None)
    checkpoint = {
        "name": "step-1000-a001", "step": 1000, "attempt": 1, "pinned": False, "complete": True, "accepted": True,
        "epoch": 1, "size": 10**9, "created": 1e9, "root_digest": "3f9a1c52e07b4d86" * 4, "damaged": "",
    }  # fmt: skip
    return {
        "event": "run", "run": name, "attempts": [1], "attempt": 1, "running": state == "training",
        "ended_without_status": False, "problem": "", "damaged": {}, "exit": None, "store": None,
        "fence": records.Fence(1, host).to_json(), "status": status_of(name, state, step),
        "lineage": records.Lineage(name).with_entry(entry).to_json(), "checkpoints": [checkpoint],
    }  # fmt: skip


if __name__ == "__main__":
    main()
