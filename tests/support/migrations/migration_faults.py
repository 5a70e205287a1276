"""Migrations between two hosts with a fault at a random moment, and the promises that are checked afterwards.

One run migrates between ``one``, behind a real SSH server and a link, and ``two``, whose root is a small disk. A sleep
slows its steps down, so that little is computed. Each run of the campaign is one migration, and starts where the
previous one has left the run.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midstream.check.check_result import FAIL
from midstream.fleet.fleet import LocalHostConfig, SshHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import launch_run
from midstream.migrate import migration_process
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.journal import JournalReader
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream.migrate.journal.migration_state import COMPLETED
from midstream.migrate.journal.phase_names import PROGRESS
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD, LIVE, WARM
from midstream.migrate.planning import planner as planning
from midstream.migrate.planning import preflight
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream_core import records
from simulators.disks import small_disk
from simulators.link import Link, through
from simulators.sshd import Lab
from support.command_line import TINY, Run
from support.engines.engine_runs import QUICK

MODES = (WARM, LIVE, COLD)
KINDS = ("operator", "source", "target", "sshd", "cut", "stall", "disk")
# Lines that the journal of a migration without a fault has, about: the moment is after one of them.
LINES = {WARM: 40, LIVE: 46, COLD: 36}
DISK = 96 << 20
STEPS = 1500  # of the run; a new one is begun before they are done
RENEWED = 1000  # step from which no further move of the same run is begun
STEP, REPLICAS = 0.3, 0.05  # seconds: of the run, and of a replica, which is faster on every host
PATIENCE = 250.0  # seconds in which a migration has to come to an end, or a run to go on
TOLERANCE = 1e-4  # relative, of float32 losses
FLAGS = (
    "--model.hidden_dim", "32", "--model.num_layers", "1", "--model.seq_len", "16",
    "--trainer.num_train_steps", str(STEPS), "--trainer.train_batch_size", "4",
    "--trainer.checkpointer.save_interval", "2s", "--optimizer.learning_rate", "1e-4",
)  # fmt: skip

SLOW = """
import importlib.abc, importlib.util, sys, time

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "midstream_engine.loop.training_loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            update = module.Loop._update
            def slow(loop, source):
                update(loop, source)
                time.sleep(SECONDS if type(loop) is module.Loop else REPLICAS)
            module.Loop._update = slow
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Slow())
"""


@dataclass(frozen=True)
class UnderWay:
    """A migration in progress. ``source``, ``target``: hosts."""

    directory: MigrationDirectory
    reader: JournalReader
    source: str
    target: str


When = Callable[[Sequence[Event]], bool]
Strike = Callable[[UnderWay], str]


def said(words: str) -> When:
    """Return a condition: a line of the journal contains these words."""
    return lambda events: any(words in event.message for event in events)


class BrokenPromiseError(AssertionError):
    """A promise was broken: the campaign stops, and leaves everything as it is."""


def finished(run: Run) -> bool:
    """True once the run has done all its steps: a migration may take longer than they do."""
    status = run.status()
    return status is not None and status.state == records.FINISHED and len(run.spliced()) == STEPS


class Campaign:
    """The two hosts, the loss curve of an undisturbed run, and the run that migrates."""

    patience = PATIENCE
    pace = STEP  # seconds of a step of the run
    renewed = RENEWED  # step from which no further move of the same run is begun

    def __init__(self, room: Path, compiled: Path) -> None:
        self.room, self.compiled = room, compiled
        os.environ["MIDSTREAM_STATE"] = str(room / "state")
        self.lab = Lab(room / "lab")
        slow = room / "slow"
        slow.mkdir(parents=True)
        (slow / "sitecustomize.py").write_text(
            SLOW.replace("SECONDS", str(self.pace)).replace("REPLICAS", str(REPLICAS))
        )
        self.flags = (*FLAGS, "--trainer.jax_compilation_cache_dir", str(compiled))
        self.wanted = self._untouched()  # first: where it fails, nothing has to be ended
        self.mounts = ExitStack()
        one, two = self._hosts({"PYTHONPATH": str(slow), "XLA_FLAGS": QUICK})
        self.fleet = self.lab.fleet(one=one, two=two)
        self.roots = {"one": Path(one.root), "two": Path(two.root)}
        self.runs: dict[str, Run] = {}
        self.at = "one"
        self.number = 0

    def _hosts(self, env: dict[str, str]) -> tuple[SshHostConfig, LocalHostConfig | SshHostConfig]:
        """Return the fleet entries of ``one`` and ``two``, whose engines have ``env`` in their environment."""
        self.server = self.lab.host("one", devices=1)
        self.link = Link(self.server.port)
        self.disk = self.room / "disk"
        self.mounted = self.mounts.enter_context(small_disk(self.disk, str(DISK)))
        one = through(self.server, self.link.port).config
        return replace(one, env=env), LocalHostConfig(root=str(self.disk / "root"), devices=2, env=env)

    def close(self) -> None:
        for run in self.runs.values():
            run.kill()
        self.link.close()
        self.lab.close()
        self.mounts.close()

    def give_up(self) -> Path:
        """Leave the run for inspection, and let the next migration start another one. Returns its directory."""
        kept = self.room / f"broken-{self.run_id}"
        for directory in map(MigrationDirectory, migration_ids()):
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                if directory.is_locked():  # it may wait for hours
                    os.kill(int((directory.path / ".lock").read_text()), signal.SIGKILL)
        for name, run in self.runs.items():
            run.kill()
            if Path(run.paths.dir).exists():
                shutil.copytree(run.paths.dir, kept / name, symlinks=True, ignore=shutil.ignore_patterns("checkpoints"))
        shutil.copytree(self.room / "state", kept / "state", ignore=shutil.ignore_patterns(".lock"))
        self.runs = {name: Run(root, "none") for name, root in self.roots.items()}
        self.at = "one"
        return kept

    # ------------------------------------------------------------------------------------------ the run

    def _untouched(self) -> dict[int, dict[str, Any]]:
        """Return the loss curve of the same run without faults, computed once by the same engine."""
        known = self.compiled / f"untouched-{build_bundle().digest[:16]}.json"
        if (rows := records.read_json_or_none(str(known))) is not None:
            return {int(step): row for step, row in rows.items()}
        root = self.room / "untouched"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("XLA_")}
        flags = f"{QUICK} --xla_force_host_platform_device_count=1"
        subprocess.run(
            [sys.executable, "-m", "midstream_engine.train", "--config_path", str(TINY), "--trainer.id", "r",
             *self.flags, "--trainer.checkpointer.save_interval", "1h"],
            env={**environment, "MIDSTREAM_ROOT": str(root), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
            check=True, capture_output=True, timeout=900,
        )  # fmt: skip
        rows = {
            step: {name: row[name] for name in ("train/loss", "batch_digest")}
            for step, row in Run(root, "r").spliced().items()
        }
        self.compiled.mkdir(exist_ok=True)
        records.write_json(str(known), {str(step): row for step, row in rows.items()})
        return rows

    def begin(self, *, saved: bool = True) -> None:
        """Start a new run on ``one``, delete the previous one, and wait for a checkpoint if ``saved``."""
        for run in self.runs.values():
            run.kill()
            shutil.rmtree(run.paths.dir, ignore_errors=True)
        self.number += 1
        self.runs = {name: Run(root, f"r{self.number}") for name, root in self.roots.items()}
        self.at = "one"
        self._launch(TINY)
        ready = (lambda run: bool(run.checkpoints())) if saved else (lambda run: bool(run.rows()))
        self.runs["one"].wait(ready, "a checkpoint" if saved else "an update", self.patience)

    def _launch(self, config: Path | str) -> None:
        hosts = HostPool(self.fleet)
        try:
            launch_run(hosts, LaunchRequest(self.at, str(config), self.run_id, self.flags))
        finally:
            hosts.close()

    def start_again(self) -> None:
        """Start the run again with ``midstream --launch``, after it has exited."""
        self._launch(self.runs[self.at].paths.config)

    @property
    def run_id(self) -> str:
        return f"r{self.number}"

    @property
    def step(self) -> int:
        status = self.runs[self.at].status() if self.runs else None
        return status.step if status is not None else STEPS

    # ---------------------------------------------------------------------------------------- a migration with a fault

    def move(self, seed: int, number: int) -> dict[str, Any]:
        """Run one migration, and return what happened. Raises BrokenPromiseError."""
        rng = random.Random(f"{seed}-{number}")
        mode, kind = MODES[number % len(MODES)], KINDS[number // len(MODES) % len(KINDS)]
        line, wait = rng.randrange(1, LINES[mode]), rng.choice((0.0, 0.0, rng.uniform(0.0, 0.6)))
        lasts = rng.uniform(0.2, 5.0)
        row: dict[str, Any] = {
            "seed": seed, "run": number, "mode": mode, "kind": kind,
            "line": line, "wait": round(wait, 3), "lasts": round(lasts, 3),
        }  # fmt: skip

        def strike(under_way: UnderWay) -> str:
            time.sleep(wait)
            return self._strike(kind, rng, under_way, lasts)

        return self.go(mode, lambda events: len(events) >= line, strike, row)

    def go(
        self,
        mode: str,
        when: When,
        strike: Strike,
        row: dict[str, Any] | None = None,
        *,
        goes_on: Callable[[str], None] = migration_process.continue_,
        source: str = "",
    ) -> dict[str, Any]:
        """Migrate the run to the other host, ``strike`` once ``when`` is true for the journal, and continue to the end.

        ``source``: the host that it has to leave. All promises are checked afterwards.
        """
        if not self.runs or self.step > self.renewed or source not in ("", self.at):
            self.begin()
        source, target = self.at, "two" if self.at == "one" else "one"
        row = {**(row or {}), "mode": mode, "from": source, "to": target}
        print(f"begins: {row}", flush=True)
        sealed_before = self.runs[source].fence.sealed_step or 0
        directory = MigrationDirectory(self._start(mode, target))
        under_way = UnderWay(directory, JournalReader(directory.journal_file), source, target)
        reached = self._await(under_way, when)
        row["at"] = place(under_way.reader)
        row["hit"] = strike(under_way) if reached else "it was over"
        continued = 0
        while True:
            self._await_end(directory)
            view = directory.view()
            if not view.open:
                break
            continued += 1
            if continued > 6:
                raise BrokenPromiseError(f"{row}: six times continued and still {view.state}: {view.error}")
            printed = [event.message for event in under_way.reader.events() if event.event == "result"]
            if printed and f"midstream --continue {directory.migration}" not in printed[-1]:
                raise BrokenPromiseError(f"{row}: no line says how it goes on: {printed[-1]}")
            goes_on(directory.migration)
        row["continued"], row["outcome"] = continued, directory.view().state
        if not reached and row["outcome"] != COMPLETED:
            raise BrokenPromiseError(f"{row}: nothing struck it, and it did not come through: {directory.view().error}")
        self._settle(row, directory, sealed_before)
        row["step"] = self.step
        return row

    def _start(self, mode: str, target: str) -> str:
        hosts = HostPool(self.fleet)
        try:
            request = Request(self.run_id, target, mode=mode, certify_steps=2, healthy_steps=4)
            plan = planning.make_plan(hosts, fleet_snapshot(hosts), request)
            refused = [check for check in preflight.run_checks(hosts, plan) if check.state == FAIL]
            if refused:
                raise BrokenPromiseError(f"the preflight refused a sound migration: {refused}")
        finally:
            hosts.close()
        return migration_process.start(self.fleet, plan)

    def _await(self, under_way: UnderWay, when: When) -> bool:
        """Wait for ``when``. False if the migration has ended before."""
        deadline = time.monotonic() + self.patience
        while not when([event for event in under_way.reader.events() if event.state != PROGRESS]):
            if not under_way.directory.is_locked():
                return False
            if time.monotonic() > deadline:
                raise BrokenPromiseError(f"{under_way.directory.migration} stands still at {place(under_way.reader)}")
            time.sleep(0.01)
        return True

    def _await_end(self, directory: MigrationDirectory) -> None:
        """Wait until no process executes the migration."""
        deadline = time.monotonic() + self.patience
        while directory.is_locked():
            if time.monotonic() > deadline:
                raise BrokenPromiseError(
                    f"{directory.migration} does not end: {place(JournalReader(directory.journal_file))}"
                )
            time.sleep(0.05)

    def _strike(self, kind: str, rng: random.Random, under_way: UnderWay, lasts: float) -> str:
        """Inject the fault, and end it after ``lasts`` seconds. Returns what was hit, in words."""
        if kind == "operator":
            return self.kill_operator(under_way)
        if kind in ("source", "target"):
            return self.kill_engine(under_way, under_way.source if kind == "source" else under_way.target)
        if kind == "cut":
            self.link.cut()
            return "every connection to one"
        if kind == "sshd":
            self.server.stop()
            time.sleep(lasts)
            self.server.start()
            return "the server of one"
        if kind == "stall":
            return self._stall(rng, under_way, lasts)
        return self._fill(lasts)

    def kill_operator(self, under_way: UnderWay) -> str:
        """Kill the process that executes the migration."""
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((under_way.directory.path / ".lock").read_text())
            if under_way.directory.is_locked():
                os.kill(pid, signal.SIGKILL)
                return "its process"
        return "it was over"

    def kill_engine(self, under_way: UnderWay, where: str) -> str:
        """Kill the newest engine on a host, once there is one."""
        deadline = time.monotonic() + self.patience
        while under_way.directory.is_locked() and time.monotonic() < deadline:
            status = self.runs[where].status()
            if status is not None and records.is_running(status.identity):
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)
                    return f"attempt {status.attempt} on {where}, {status.state} at step {status.step}"
            time.sleep(0.02)
        return "it was over"

    def _stall(self, rng: random.Random, under_way: UnderWay, lasts: float) -> str:
        """Stop a process for a while, as on a sleeping laptop, a swapping host or a stalled link."""
        directory = under_way.directory
        pids = {"the link": self.server.sessions()}
        with suppress(FileNotFoundError, ValueError):
            pids["its process"] = [int((directory.path / ".lock").read_text())] if directory.is_locked() else []
        for role, where in (("the source", under_way.source), ("the target", under_way.target)):
            status = self.runs[where].status()
            pids[role] = [status.pid] if status is not None and records.is_running(status.identity) else []
        victim = rng.choice(sorted(name for name, found in pids.items() if found) or ["nothing"])
        for pid in pids.get(victim, []):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(lasts)
        for pid in pids.get(victim, []):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return victim

    def _fill(self, lasts: float) -> str:
        if not self.mounted:
            self.link.cut()
            return "no small disk here: every connection to one"
        filler = self.disk / "other"
        with filler.open("wb", buffering=0) as file, suppress(OSError):  # no space left: what is wanted
            while True:
                file.write(bytes(1 << 20))
        time.sleep(lasts)
        filler.unlink()
        return "the disk of two"

    # ------------------------------------------------------------------------------------------ what has to hold

    def _settle(self, row: dict[str, Any], directory: MigrationDirectory, sealed_before: int) -> None:
        """Check that the migration has left one lineage, no lost step, and a run that trains."""
        fences = {name: run.fence for name, run in self.runs.items() if Path(run.paths.fence).exists()}
        newest = max(fences.values(), key=lambda fence: fence.epoch)
        self.at = newest.owner
        run = self.runs[self.at]
        row["epoch"], row["owner"] = newest.epoch, newest.owner
        others = [other for name, other in self.runs.items() if name != self.at]
        for other in others:
            self._check_stopped(row, other)
        if not run.running and not finished(run):
            row["started_again"] = True  # with the one line that starts a run
            self.start_again()
        before = len(run.spliced())
        run.wait(
            lambda run: finished(run) or (run.running and len(run.spliced()) > before + 2),
            "the run goes on",
            self.patience,
        )
        spliced = run.spliced()
        if sorted(spliced) != list(range(max(spliced) + 1)):
            raise BrokenPromiseError(f"{row}: steps are missing: {gaps(spliced)}")
        sealed = directory.view().sealed_step
        lost = [step for step in (sealed_before, sealed) if step is not None and step > max(spliced) + 1]
        if lost:
            raise BrokenPromiseError(f"{row}: sealed at step {lost}, the run is at {max(spliced)}")
        for other in others:
            self._check_stopped(row, other)
            for name in other.checkpoints():
                manifest = other.manifest(name)
                if (
                    manifest.epoch < newest.epoch
                    and newest.accepts(manifest.epoch, manifest.step, manifest.start) is False
                ):
                    continue
                if manifest.step > len(spliced):  # step N has rows 0 to N - 1
                    raise BrokenPromiseError(
                        f"{row}: {name} of {manifest.epoch} is accepted, and the run is not there yet"
                    )
        worst = max(
            records.relative_difference(self.wanted[step]["train/loss"], line["train/loss"])
            for step, line in spliced.items()
        )
        digests = [step for step, line in spliced.items() if line["batch_digest"] != self.wanted[step]["batch_digest"]]
        if worst > TOLERANCE or digests:
            raise BrokenPromiseError(f"{row}: losses differ by {worst:.1e}, batches at {digests[:5]}")
        row["largest_difference"] = float(f"{worst:.2g}")

    def _check_stopped(self, row: dict[str, Any], other: Run) -> None:
        """Check that no engine or standby is left where the run is not."""
        deadline = time.monotonic() + self.patience
        while other.attempt and other.running:
            if time.monotonic() > deadline:
                raise BrokenPromiseError(f"{row}: {other.paths.dir} still has a running engine: {other.status()}")
            time.sleep(0.05)


def place(reader: JournalReader) -> str:
    """Return the migration's newest phase and line, without numbers."""
    events = [event for event in reader.events() if event.state != PROGRESS]
    phase = next((event.phase for event in reversed(events) if event.phase), "plan")
    last = events[-1] if events else None
    if last is None:
        return phase
    what = last.message or last.state or ",".join(last.detail)
    return f"{phase}: {re.sub(r'[0-9a-f]{8,}|/[^ ]+|[0-9.]+', '#', what)[:60]}"


def gaps(spliced: dict[int, Any]) -> list[int]:
    return sorted(set(range(max(spliced) + 1)) - spliced.keys())[:10]
