"""The terminal UI beside an empty Textual app, in terminals of their own, in turns.

    python benchmarks/tui.py [--rounds 7] [--keys 60] [--idle 20] [--points 1000000] [--hosts 500] [--only first,...]

- first: from the start of the interpreter to the first text on the screen, of `midstream` with a fleet of one host.
- keys: from a key press to the text that answers it, while each of ``--hosts`` simulated hosts reports every
  second, in the lines that probes write, and the curve in sight holds ``--points`` points and grows by one a second.
  The empty app answers a key with another word, ours with the curve of another metric.
- idle: processor time of a process without input, with a run that does not change; the kernel counts it.
- filter: processor time of a filter over ten runs on each of ``--hosts`` hosts; each key in the filter line takes it.
- memory: what ten metrics of ``--points`` steps take, in the store and on the screen with small multiples; the kernel's
  own count of resident memory.
- system: what a day of system metrics of ``--hosts`` hosts with eight accelerators each takes, with a run of each on
  the screen's list; the kernel's own count.
- leet: the time until `wandb leet` shows the same loss, and its memory, where wandb is installed (``--only leet``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from terminal.screen import PATIENCE, Screen

ROOT = Path(__file__).parents[1]
WORDS = ("empty-first", "empty-other")
METRICS = 10
FILTERS = {"word": "run00", "field": "host=host000", "number": "step>1,000", "pattern": "~^run(0|1)+$"}
PARTS = ("first", "keys", "idle", "filter", "memory", "system", "leet")


def main() -> None:
    parser = argparse.ArgumentParser(description="the terminal UI beside an empty Textual app")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, default=500)
    parser.add_argument("--only", default="first,keys,idle,filter,memory,system", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    found: dict[str, Any] = {"versions": versions()}
    for part in options.only.split(","):
        found[part] = globals()[f"measure_{part}"](options)
        print(json.dumps({part: found[part]}), flush=True)
    print(json.dumps(found, indent=2))


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], "textual": version("textual"), "cores": str(os.cpu_count())}


# ------------------------------------------------------------------------------------------- what is measured


def use_test_support() -> None:
    sys.path.insert(1, str(ROOT / "tests"))


def started(kind: str, options: argparse.Namespace, env: dict[str, str] | None = None) -> Screen:
    argv = [sys.executable, __file__, "--child", kind, "--points", str(options.points), "--hosts", str(options.hosts)]
    return Screen(argv, env)


def measure_first(options: argparse.Namespace) -> dict[str, float]:
    """Time `midstream` itself, with a fleet file of one host of this machine, until the host's name is shown.

    Both programs start from compiled modules, as they do for a user from the second start on: the first round compiles
    them, also where the environment forbids to keep them. The fleet file has been read by an earlier start, and in the
    rows of "edited" it was written again since.
    """
    kinds = ("empty", "midstream", "edited")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as directory:
        fleet = Path(directory, "fleet.yaml")
        text = f"hosts: {{{WORDS[0]}: {{type: local, root: {directory}/root}}}}\n"
        fleet.write_text(text)
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{directory}/compiled"}
        state = {**compiled, "MIDSTREAM_STATE": f"{directory}/state"}
        for _ in range(options.rounds + 1):
            for kind in kinds:
                if kind == "edited":
                    fleet.write_text(text)
                ours = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
                screen = started(kind, options, compiled) if kind == "empty" else Screen(ours, state)
                times[kind].append(screen.until(lambda text: WORDS[0].encode() in text) - screen.began)
                used[kind].append(screen.cpu_seconds)
                screen.rest(1.0)  # until the fleet file has been read
                screen.close()
    empty, ours, edited = (statistics.median(times[kind][1:]) for kind in kinds)  # the first one warms the disk
    processor = {kind: statistics.median(used[kind][1:]) for kind in kinds}
    return {
        "empty_seconds": round(empty, 3),
        "seconds": round(ours, 3),
        "ratio": round(ours / empty, 2),
        "processor_ratio": round(processor["midstream"] / processor["empty"], 2),
        "edited_ratio": round(edited / empty, 2),
        "edited_processor_ratio": round(processor["edited"] / processor["empty"], 2),
    }


def measure_keys(options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    base, each = {}, {}  # processor: share while no key is pressed, seconds a key beyond that
    for kind, keys, words in (
        ("empty", "]]", WORDS[::-1]),
        ("fleet", "][", ("grad/norm/total", "train/loss")),
    ):
        screen = started(kind, options)
        screen.until(lambda text, word=words[1]: word.encode() in text, 300)
        screen.rest(10)
        before = screen.cpu_seconds
        screen.rest(5)
        base[kind] = (screen.cpu_seconds - before) / 5
        before, began = screen.cpu_seconds, time.perf_counter()
        times = found[kind] = []
        chance = random.Random(1)
        for number in range(options.keys + 4):
            word = words[number % 2].encode()
            pressed = screen.press(keys[number % 2])
            times.append(screen.until(lambda text, word=word: word in text) - pressed)
            screen.rest(0.05 + 0.4 * chance.random())  # at any moment of the second in which hosts change
        used = screen.cpu_seconds - before - base[kind] * (time.perf_counter() - began)
        each[kind] = used / len(times)
        screen.close()
    empty, ours = (statistics.quantiles(found[kind][4:], n=20)[-1] for kind in ("empty", "fleet"))
    return {
        "empty_p95_ms": round(1000 * empty, 1),
        "p95_ms": round(1000 * ours, 1),
        "more_ms": round(1000 * (ours - empty), 1),
        "median_ms": round(1000 * statistics.median(found["fleet"][4:]), 1),
        "empty_median_ms": round(1000 * statistics.median(found["empty"][4:]), 1),
        "processor_ms_a_key": round(1000 * each["fleet"], 1),
        "empty_processor_ms_a_key": round(1000 * each["empty"], 1),
        "processor_percent_hosts_changing": round(100 * base["fleet"], 1),
    }


def measure_idle(options: argparse.Namespace) -> dict[str, float]:
    found = {}
    for kind, word in (("empty", WORDS[0]), ("small", "nano")):
        screen = started(kind, options)
        screen.until(lambda text, word=word: word.encode() in text)
        screen.rest(3)
        before = screen.cpu_seconds
        screen.rest(options.idle)
        found[kind] = (screen.cpu_seconds - before) / options.idle
        screen.close()
    return {"empty_percent": round(100 * found["empty"], 2), "percent": round(100 * found["small"], 2)}


def measure_filter(options: argparse.Namespace) -> dict[str, float]:
    """Processor time to parse a filter and to apply it to all runs, as each key in the filter line does."""
    use_test_support()
    from terminal.still_fleets import many_runs

    from midstream.listing import filter_parser
    from midstream.tui.screens.fleet import table_rows
    from midstream.tui.state.saved_layout import ListLayout
    from midstream.tui.state.screen_state import ScreenState
    from support.tui.fleets import NOW

    state = ScreenState(many_runs(options.hosts), (), NOW)
    runs, listing = state.current_runs, table_rows.RUNS
    found: dict[str, float] = {"runs": len(runs)}
    for kind, text in FILTERS.items():
        times = []
        for _ in range(options.rounds):
            began = time.process_time()
            condition = filter_parser.parse(text, listing.fields, NOW)
            table_rows.found_in(listing, runs, state, condition, ListLayout())
            times.append(time.process_time() - began)
        found[f"{kind}_ms"] = round(1000 * statistics.median(times), 1)
    return found


def measure_memory(options: argparse.Namespace) -> dict[str, float]:
    found = {}
    for kind, word in (("empty", WORDS[0]), ("small", "nano"), ("memory", "metric/5")):
        screen = started(kind, options)
        screen.until(lambda text, word=word: word.encode() in text, 500)
        screen.rest(3)
        found[kind] = screen.megabytes
        screen.close()
    points = METRICS * options.points / 1e6
    return {
        "empty_mb": round(found["empty"]),
        "few_points_mb": round(found["small"]),
        "millions_of_points": points,
        "mb": round(found["memory"]),
    }


def measure_system(options: argparse.Namespace) -> dict[str, float]:
    found = {}
    for kind, word in (("empty", WORDS[0]), ("hosts", "nano"), ("system", "utilization")):
        screen = started(kind, options)
        screen.until(lambda text, word=word: word.encode() in text, 500)
        screen.rest(3)
        found[kind] = screen.megabytes
        screen.close()
    return {
        "empty_mb": round(found["empty"]),
        "hosts": options.hosts,
        "without_system_mb": round(found["hosts"]),
        "mb": round(found["system"]),
    }


def measure_leet(options: argparse.Namespace) -> dict[str, Any]:
    """Compare with W&B LEET: each opens a run of ``--points`` steps.

    LEET opens the file of an offline run, midstream a run directory on this machine. A program has loaded the run when
    it uses less than a tenth of a processor for two seconds.
    """
    from terminal.wandb_file import write_wandb

    with tempfile.TemporaryDirectory(prefix="leet") as name:
        folder = Path(name)
        write_wandb(folder, options.points)
        [directory] = (folder / "wandb").glob("offline-run-*")
        fleet = write_run(folder, options.points)
        ours = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
        found = {}
        for name, argv in (("leet", [sys.executable, "-m", "wandb", "leet", str(directory)]), ("midstream", ours)):
            screen = Screen(argv, {"MIDSTREAM_STATE": str(folder / "state"), "WANDB_DIR": str(folder)})
            screen.rest(1)
            if name == "midstream":
                screen.until(lambda text: b"training" in text, PATIENCE)  # it lists the run: open it
                screen.press("\r")
            seconds = screen.at_rest() - screen.began
            found[name] = {"loaded_seconds": round(seconds, 1), "mb": round(screen.megabytes)}
            if b"train/loss" not in screen.text:
                found[name]["failed"] = "it does not show the curve"
            elif seconds > PATIENCE - 3:
                found[name]["failed"] = f"it did not come to rest within {PATIENCE:.0f} s"
            screen.close()
    return {"steps": options.points, **found}


def write_run(folder: Path, points: int) -> Path:
    """A run directory with the same metrics, and the fleet file that it is found by."""
    use_test_support()
    from support.run_directory import RunDirectory

    run = RunDirectory(folder / "root", "long")
    run.fence(1)
    run.status(1, "training", points)
    rows = (
        f'{{"global_step": {step}, "train/loss": {2.0 + 3.0 / (1 + step / 1000)}, "time": {1e9 + step}}}\n'
        for step in range(points)
    )
    run.text(1, "".join(rows))
    file = folder / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {folder / 'root'}}}\n")
    return file


# ------------------------------------------------------------------------------------------- the programs


def child(options: argparse.Namespace) -> None:
    if options.child == "empty":
        empty_app()
        return
    use_test_support()
    from terminal.still_fleets import (
        Still,
        day_of_system,
        fleet_rows,
        fleet_world,
        grown_as,
        keep_in_files,
        long_curve,
        small_world,
    )

    if options.child == "small":
        run_ours(Still(small_world()), start_run="nano")
    elif options.child == "fleet":
        from terminal.long_curve_probes import LongCurveProbes
        from terminal.simulated_fleet import SimulatedFleet

        fleet = SimulatedFleet(LongCurveProbes(options.hosts, options.points), 1.0)
        fleet.fill()
        fleet.start()
        run_ours(fleet, start_run="nano")
    elif options.child in ("hosts", "system"):
        snapshot = fleet_world(options.hosts, fleet_rows(1000))
        if options.child == "system":
            day = day_of_system()
            snapshot = dataclasses.replace(snapshot, system={host.name: grown_as(day) for host in snapshot.hosts})
            keep_in_files(snapshot.system)
        run_ours(Still(snapshot), start_run="nano", tiles=True)
    else:
        run_ours(Still(fleet_world(2, long_curve(options.points, METRICS))), start_run="nano", tiles=True)


def empty_app() -> None:
    from textual.app import App, ComposeResult
    from textual.widgets import Static

    class Empty(App[None]):
        number = 0

        def compose(self) -> ComposeResult:
            yield Static(WORDS[0])

        def on_key(self) -> None:
            self.number += 1
            self.query_one(Static).update(WORDS[self.number % 2])

    Empty().run()


def run_ours(source: Any, *, start_run: str | None, tiles: bool = False) -> None:
    from midstream.tui.app import MidstreamApp
    from midstream.tui.state.saved_layout import SavedLayout
    from support.tui.fleets import NOW
    from support.tui.prepared_actions import PreparedActions

    MidstreamApp(
        source, PreparedActions(), start_run=start_run, clock=lambda: NOW, layout=SavedLayout(tiles=tiles)
    ).run_alone()


if __name__ == "__main__":
    main()
