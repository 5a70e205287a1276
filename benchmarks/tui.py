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
import contextlib
import dataclasses
import json
import math
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZE = (45, 160)
WORDS = ("empty-first", "empty-other")
METRICS = 10
RUNS_ON_HOST = 10
FILTERS = {"word": "run00", "field": "host=host000", "number": "step>1,000", "pattern": "~^run(0|1)+$"}
PATIENCE = 90.0  # seconds for a program to load a million steps
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


class Screen:
    """A program in a terminal of its own, and all that it writes there."""

    def __init__(self, argv: list[str], env: dict[str, str] | None = None) -> None:
        self.began = time.perf_counter()
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._master = master
        self._text = b""

    @property
    def text(self) -> bytes:
        """Output since the last key press, or the last megabyte of it."""
        return self._text

    def press(self, key: str) -> float:
        """Forget what was written; the moment of the press."""
        self._drain()
        self._text = b""
        now = time.perf_counter()
        os.write(self._master, key.encode())
        return now

    def until(self, holds: Callable[[bytes], bool], timeout: float = 120.0) -> float:
        """The moment at which what was written since holds."""
        deadline = time.perf_counter() + timeout
        while not holds(self._text):
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.perf_counter()))
            if not ready:
                raise TimeoutError(self._text[-2000:].decode(errors="replace"))
            self._text += os.read(self._master, 1 << 16)
        return time.perf_counter()

    def _drain(self) -> None:
        while select.select([self._master], [], [], 0)[0]:
            os.read(self._master, 1 << 16)

    def rest(self, seconds: float) -> None:
        """Let it be, and read what it writes."""
        deadline = time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._text = (self._text + os.read(self._master, 1 << 16))[-1_000_000:]

    @property
    def cpu_seconds(self) -> float:
        return _cpu_seconds(self.process.pid)

    def at_rest(self, timeout: float = PATIENCE) -> float:
        """The moment from which on the session's processes rested for two seconds."""
        deadline = time.perf_counter() + timeout
        busy, before = time.perf_counter(), self.session_seconds
        while time.perf_counter() < deadline and time.perf_counter() - busy < 2:
            self.rest(0.25)
            now = self.session_seconds
            if now - before > 0.025:
                busy = time.perf_counter()
            before = now
        return busy

    @property
    def session_seconds(self) -> float:
        return sum(_cpu_seconds(pid) for pid in self._session())

    def _session(self) -> list[int]:
        """The process and those that it started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has exited already
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
        return found

    @property
    def megabytes(self) -> float:
        """Resident, of the process and those that it started."""
        total = 0
        for pid in self._session():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                total += int(status.split("VmRSS:")[1].split()[0]) if "VmRSS:" in status else 0
        return total / 1000

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


def _cpu_seconds(pid: int) -> float:
    """Of a process, as the kernel counts them; 0 of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    sys.path[0] = str(ROOT / "tests")
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
    import tempfile

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
    sys.path[0] = str(ROOT / "tests")
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


def write_wandb(folder: Path, points: int) -> None:
    """Write an offline run in wandb's format: a LevelDB log with wandb's messages.

    wandb takes 250 us per step, so it writes the first steps only; the others are inserted before the end.
    """
    code = (
        "import wandb\n"
        f"run = wandb.init(mode='offline', dir={str(folder)!r}, project='p', settings=wandb.Settings(silent=True))\n"
        "for step in range(10): run.log({'train/loss': 2.0 + 3.0 / (1 + step / 1000)}, step=step)\n"
        "run.finish()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    from wandb.proto import wandb_internal_pb2 as messages

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    records = list(_log_records(data))
    parsed = [messages.Record.FromString(record) for record in records]  # type: ignore[attr-defined]
    end = next(number for number, record in enumerate(parsed) if record.WhichOneof("record_type") == "exit")
    like = next(record for record in reversed(parsed) if record.WhichOneof("record_type") == "history")
    first = 1 + max(record.num for record in parsed)

    def all_records() -> Iterator[bytes]:
        yield from records[:end]
        began = {item.nested_key[0]: float(item.value_json) for item in like.history.item}
        for step in range(10, points):
            values = {
                "train/loss": 2.0 + 3.0 / (1 + step / 1000),
                "_timestamp": began["_timestamp"] + step,
                "_runtime": began["_runtime"] + step,
                "_step": step,
            }
            like.num, like.history.step.num = first + step, step
            for item in like.history.item:
                item.value_json = json.dumps(values[item.nested_key[0]])
            yield like.SerializeToString()
        parsed[end].num = first + points
        yield parsed[end].SerializeToString()

    with file.open("wb") as out:
        out.write(data[:HEADER])
        place = HEADER
        for record in all_records():
            place += out.write(_log_chunks(record, place))


BLOCK, CHUNK_HEADER, HEADER = 32768, 7, 7  # bytes, of LevelDB's log and of wandb's file
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def _log_records(data: bytes) -> Iterator[bytes]:
    """Read a LevelDB log: https://github.com/google/leveldb/blob/main/doc/log_format.md."""
    place, record = HEADER, b""
    while place < len(data):
        if BLOCK - place % BLOCK < CHUNK_HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record = (b"" if kind in (FULL, FIRST) else record) + data[place + CHUNK_HEADER : place + CHUNK_HEADER + length]
        place += CHUNK_HEADER + length
        if kind in (FULL, LAST):
            yield record


def _log_chunks(record: bytes, place: int) -> bytes:
    """A record at ``place`` of the file. wandb's checksum is zlib's CRC-32 of the kind and the data."""
    found, begin = b"", True
    while begin or record:
        room = BLOCK - (place + len(found)) % BLOCK
        if room < CHUNK_HEADER:
            found += bytes(room)
            continue
        part, record = record[: room - CHUNK_HEADER], record[room - CHUNK_HEADER :]
        kind = (FIRST if record else FULL) if begin else (MIDDLE if record else LAST)
        found += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        begin = False
    return found


# ------------------------------------------------------------------------------------------- the programs


def child(options: argparse.Namespace) -> None:
    if options.child == "empty":
        empty_app()
        return
    sys.path[0] = str(ROOT / "tests")
    if options.child == "small":
        run_ours(Still(small_world()), start_run="nano")
    elif options.child == "fleet":
        run_ours(SimulatedFleet(options.hosts, options.points), start_run="nano")
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


class Still:
    """A fleet in which nothing changes."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Any:
        return self._snapshot

    def subscribe(self, _callback: Callable[..., Any], /) -> Callable[[], None]:
        return lambda: None


class SimulatedFleet:
    """A fleet of simulated probes: a store receives their lines, one host after the other, every second."""

    def __init__(self, hosts: int, points: int) -> None:
        from midstream.watch.snapshot_store import SnapshotStore

        still = fleet_world(hosts, ())
        self._store = SnapshotStore({host.name: "ssh" for host in still.hosts})
        self._machines = {host.name: host.machine for host in still.hosts}
        self._chance = random.Random(2)
        self._points = points
        self._callbacks: list[Callable[..., Any]] = []
        for host, run in zip(still.hosts, still.runs, strict=True):
            self._first(host.name, run, points if run.run_id == "nano" else 50)
        threading.Thread(target=self._go_on, daemon=True).start()

    def snapshot(self) -> Any:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _report(self, host: str, **line: Any) -> None:
        self._store.take(host, json.loads(json.dumps(line)))

    def _first(self, host: str, run: Any, points: int) -> None:
        machine = self._machines[host]
        self._report(host, event="hello", hostname=host, platform=machine.platform, python=machine.python, cpus=96)
        records = {name: getattr(run, name).to_json() for name in ("fence", "lineage", "status")}
        records["status"]["step"] = points
        self._report(host, event="run", run=run.run_id, attempts=[1], attempt=1, running=True, **records)
        for start in range(0, points, 2000):
            self._metrics(host, run.run_id, start, min(points, start + 2000))
        kept = ("memory_total", "memory_used", "disk_total", "disk_free")
        gauges = {name: getattr(machine, name) for name in kept}
        accelerators = [vars(each) for each in machine.accelerators]
        self._report(host, event="beat", time=time.time(), cpu_used=0.5, accelerators=accelerators, **gauges)

    def _metrics(self, host: str, run: str, start: int, stop: int) -> None:
        text = "".join(
            f'{{"global_step": {step}, "time": {1e9 + step}, "train/loss": {value}, "grad/norm/total": {value}}}\n'
            for step in range(start, stop)
            for value in (2.0 + 3.0 * math.exp(-step / 2e5) + 0.1 * self._chance.random(),)
        )
        self._report(host, event="metrics", run=run, attempt=1, inode=1, offset=start, end=stop, text=text)

    def _go_on(self) -> None:
        names = list(self._machines)
        while True:
            began = time.monotonic()
            for number, host in enumerate(names):
                time.sleep(max(0.0, began + number / len(names) - time.monotonic()))
                if number == 0:
                    self._metrics(host, "nano", self._points, self._points + 1)
                    self._points += 1
                self._report(host, event="beat", time=time.time(), cpu_used=round(self._chance.random(), 2))
                for callback in tuple(self._callbacks):
                    callback()
            time.sleep(max(0.0, began + 1 - time.monotonic()))


def many_runs(hosts: int) -> Any:
    from support.tui import fleets

    names, few = [f"host{number:03}" for number in range(hosts)], fleets.rows(20)
    runs = [
        fleets.run(f"run{number:04}", names[number % hosts], step=20, curve=few)
        for number in range(RUNS_ON_HOST * hosts)
    ]
    return fleets.snapshot([fleets.host(name) for name in names], runs)


def small_world() -> Any:
    from support.tui import fleets

    return fleets.small_fleet()


def long_curve(points: int, metrics: int) -> Any:
    from midstream.watch.runs.loss_curve import LossCurve

    names = ["train/loss", "grad/norm/total", *(f"metric/{number}" for number in range(2, metrics))]
    curve, chance = LossCurve(), random.Random(3)
    for start in range(0, points, 10_000):
        rows = []
        for step in range(start, min(points, start + 10_000)):
            value = 2.0 + 3.0 * math.exp(-step / (points / 5)) + 0.1 * chance.random()
            rows.append({"global_step": step, "time": 1e9 + step, **dict.fromkeys(names, value)})
        curve.extend(1, rows)
    return curve.rows()


def fleet_rows(count: int) -> Any:
    from support.tui import fleets

    return fleets.rows(count)


def day_of_system() -> Any:
    """A day of reports of a host with all system metrics: as often as each resolution has a point."""
    from midstream.watch.system.system_series import TIERS, SystemSeries
    from support.tui.fleets import NOW

    series, chance, time_left = SystemSeries(), random.Random(4), 1.1 * 86400
    names = ("network_received", "network_sent", "rdma_received", "rdma_sent", "disk_read", "disk_written")
    while time_left > 0:
        share = chance.random()
        units = [
            {"index": index, "utilization": share, "memory_used": 7 * 10**10, "power": 700 * share, "temperature": 60.0}
            for index in range(8)
        ]
        gauges = {"cpu_used": share, "memory_used": 10**11, **dict.fromkeys(names, int(1e9 * share))}
        series.add(NOW - time_left, {**gauges, "accelerators": units})
        time_left -= next((seconds for seconds, count in TIERS if time_left <= seconds * count), TIERS[-1][0])
    return series


def grown_as(series: Any) -> Any:
    """The same series in memory of its own, grown value by value as a watcher's: arrays allocate in advance."""
    from array import array

    from midstream.watch.system.system_series import SystemSeries

    def grown(values: Any) -> Any:
        new = array(values.typecode)
        for value in values:
            new.append(value)
        return new

    new = SystemSeries()
    new.version = series.version
    for target, source in zip(new._tiers, series._tiers, strict=True):  # noqa: SLF001 (adding takes a minute)
        target.times = grown(source.times)
        target.columns = {key: grown(column) for key, column in source.columns.items()}
    return new


def keep_in_files(system: Any) -> None:
    """Write the files of all hosts, as a session does; what that takes counts as well."""
    from midstream.watch.system.series_files import SeriesFiles

    with tempfile.TemporaryDirectory() as directory:
        os.environ["MIDSTREAM_STATE"] = directory
        files = SeriesFiles("benchmark", system)
        files.start()
        files.restored.wait()
        files.stop()


def fleet_world(hosts: int, curve: Any) -> Any:
    from support.tui import fleets

    names = [f"host{number:03}" for number in range(hosts)]
    runs = [fleets.run("nano", names[0], step=len(curve), curve=curve)]
    few = fleets.rows(50)
    runs += [fleets.run(f"run{number:03}", name, step=50, curve=few) for number, name in enumerate(names[1:])]
    return fleets.snapshot([fleets.host(name, accelerators=8, kind="NVIDIA H100") for name in names], runs)


if __name__ == "__main__":
    main()
