"""The terminal UI with 1,000 hosts and 100,000 runs, in a terminal of its own.

    python benchmarks/fleet_scale.py [--hosts 1000] [--runs 100] [--keys 40] [--seconds 45]
    python benchmarks/fleet_scale.py --interactive   # the same fleet in this terminal, to use by hand

Simulated probes report to the store in the lines that real ones write, from a thread of the same process: first every
host with its ``--runs`` runs, one of which trains; then each host once in the interval that a watcher of as many hosts
polls at, with a status and a row of metrics of the run that trains. The rest have ended.

- first: from the start of the interpreter to the first text of the fleet screen, the median of two starts after one
  that compiles the modules; an empty Textual app beside it. Actions are simulated, and loaded after it.
- filled: until all runs are counted; the probes' own lines are made before.
- keys: from a key in the list of runs to the selected row's repaint, while hosts report.
- filter: from a key in the filter line to the count of the runs that pass.
- slowest: of other keys (sort, group, hide, open, back, help, verify), from the key to the text that answers it; of
  those that make the list again, also until the list is complete.
- quit: from the key to the end of the process, while all checkpoints are verified.
- memory, processor: resident memory, before and after the other keys, and share of one core while hosts report and no
  key is pressed; the kernel's.
- status: `--status --json` of the same fleet, its lines written to a pipe: seconds from the first report of a host to
  the first line and to the end, and the most memory that the command had. Four threads report as fast as they can.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from terminal.many_runs_probes import ManyRunsProbes
from terminal.screen import Screen
from terminal.simulated_fleet import SimulatedFleet

from tui import WORDS, empty_app, use_test_support, versions  # pyright: ignore (the folder of this file is on the path)

AIMS = {
    "slowest_key_ms": 300,
    "quit_seconds": 2,
    "filter_p95_ms": 300,
    "keys_more_ms": 50,
    "mb": 600,
    "mb_at_the_end": 600,
    "processor_share": 0.25,
}
STARTS = 3  # of which the first compiles modules and warms the disk
ALL = rb"%d(?! read)"  # the list of runs is complete: it does not say which share of them was read
# Other keys, each with what answers it; ALL where the list is made again.
OTHER_KEYS = (
    ("o", "RUN\N{UPWARDS ARROW}", ALL),
    ("o", "HOST\N{UPWARDS ARROW}", ALL),
    ("o", "STATE\N{UPWARDS ARROW}", ALL),
    ("O", "STATE\N{DOWNWARDS ARROW}", ALL),
    ("b", "by project", ALL),
    ("b", "by tags", ALL),
    ("b", "by host", ALL),
    ("G", "ended0999-99", None),
    ("g", "live0000", None),
    ("f", "finished hidden", ALL),
    ("f", "by host", ALL),
    ("\r", "Checkpoints", None),
    ("2", "Follow", None),
    ("\x1b", "Migrations", None),
    ("?", "Everywhere", None),
    ("\x1b", "Migrations", None),
    ("1", "ACCELERATORS", None),
    ("o", "HOST\N{UPWARDS ARROW}", None),
    ("2", "STATE", None),
    ("V", "Verify 100,000 checkpoints", None),
    ("y", "verified", None),
)
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
    first = statistics.median(list(first_frames(options))[1:])
    screen = started("fleet", options)
    count = str(options.hosts * options.runs).encode()
    filled = screen.until(lambda text: count in text, PATIENCE) - screen.began
    screen.rest(15)
    before = screen.cpu_seconds
    screen.rest(options.seconds)
    share = (screen.cpu_seconds - before) / options.seconds
    keys = list(moves(screen, options.keys))
    filters = list(filter_keys(screen, options))
    megabytes = round(screen.megabytes)
    answers, lists = other_keys(screen, options)
    slowest, slowest_list = max(answers, key=answers.__getitem__), max(lists, key=lists.__getitem__)
    at_the_end = round(screen.megabytes)
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
        "slowest_key_ms": round(1000 * answers[slowest], 1),
        "slowest_list": slowest_list,
        "slowest_list_ms": round(1000 * lists[slowest_list], 1),
        "quit_seconds": round(quit_seconds, 2),
        "mb": megabytes,
        "mb_at_the_end": at_the_end,
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


def first_frames(options: argparse.Namespace) -> Iterator[float]:
    """Start the program: the seconds until the text of the fleet screen is written."""
    for _ in range(STARTS):
        screen = started("fleet", options)
        yield screen.until(lambda text: b"Runs" in text) - screen.began
        screen.close()


def other_keys(screen: Screen, options: argparse.Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Press each key once: the seconds until its answer is written, and until the list of runs is complete."""
    answers, lists = dict[str, float](), dict[str, float]()
    for number, (key, text, complete) in enumerate(OTHER_KEYS):
        screen.rest(1.0)
        pressed = screen.press(key)
        name = f"{number} {key!r}"
        answers[name] = screen.until(lambda written, text=text: text.encode() in written, PATIENCE) - pressed
        if complete is not None:
            pattern = re.compile(complete % (options.hosts * options.runs))
            lists[name] = screen.until(lambda written, pattern=pattern: pattern.search(written), PATIENCE) - pressed
    return answers, lists


# ------------------------------------------------------------------------------------------- the program


def run_fleet(hosts: int, runs: int) -> None:
    from midstream.tui.app import MidstreamApp
    from midstream.tui.state.saved_layout import SavedLayout
    from midstream.watch.poll_interval import PollInterval

    fleet = SimulatedFleet(ManyRunsProbes(hosts, runs), PollInterval(1.0, hosts).seconds)
    actions: Any = LateActions()
    MidstreamApp(fleet, actions, layout=SavedLayout(), after_first_frame=fleet.start).run_alone()


class LateActions:
    """Prepared actions of the tests, which are imported when the first one is called: after the first frame."""

    def __getattr__(self, name: str) -> Any:
        use_test_support()
        from support.tui.prepared_actions import PreparedActions

        self.__dict__["_actions"] = actions = self.__dict__.get("_actions") or PreparedActions()
        return getattr(actions, name)


def run_status(hosts: int, runs: int) -> None:
    """Run `--status --json`; write to stderr when the first host reported, and what the command used."""
    from concurrent.futures import ThreadPoolExecutor

    from midstream.fleet.fleet import Fleet, SshHostConfig
    from midstream.headless import status
    from midstream.output import Output
    from midstream.watch import host_feed

    probes, reported = ManyRunsProbes(hosts, runs), list[float]()
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
            for line in probes.first(probes.hosts.index(self._name)):
                self._store.take(self._name, json.loads(line))
            reported.append(time.monotonic())

        def stop(self) -> None: ...
        def join(self, _deadline: float) -> None: ...
        def tick(self) -> None: ...
        def set_interval(self, _seconds: float) -> None: ...

    host_feed.HostFeed = Feed
    address = SshHostConfig(address="127.0.0.1", root="/midstream")
    fleet = Fleet(dict.fromkeys(probes.hosts, address), path="/fleet.yaml")
    status.status(fleet, argparse.Namespace(filter=None), Output(True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    pool.shutdown()
    facts = {"reported": reported[0], "processor": time.process_time(), "peak_mb": peak}
    print(json.dumps(facts), file=sys.stderr)


if __name__ == "__main__":
    main()
