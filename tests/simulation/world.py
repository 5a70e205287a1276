"""A world of simulated machines with the real midstream in it: an operator, hosts, a run that trains."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from midstream.fleet import fleet as fleets
from midstream.hosts import host_pool
from midstream.install import bundle
from midstream.launch import input_check
from midstream.migrate import migration_process
from midstream.migrate.journal import journal
from midstream.transfer import copy_tree, send_files
from midstream_core import records
from midstream_core.attempt import status_file
from midstream_host.machine import accelerators, checks, environments, gauges, inventory
from midstream_host.runs import process_start, slurm
from simulation import copies, engine, links, machines
from simulation.cooperative import SCHEDULER
from simulation.disks import Disk
from simulation.machines import Machine, SimulatedProcess, present, replace_everywhere

RUN = "r"
EPOCH = 1
AHEAD = (0.0, 0.0, 0.0, 0.3, -0.3, 50.0, -50.0, 90000.0)  # seconds of a clock before the true time
WATCH_INTERVAL = 5.0  # seconds between two polls of a host


@dataclass
class World:
    """Machines below ``directory``, links between them, and what the operators' commands printed."""

    directory: str
    seed: int = 0
    network: links.Network = field(init=False)
    machines: dict[str, Machine] = field(default_factory=dict)
    said: list[tuple[str, int, str]] = field(default_factory=list)  # command, exit code, output
    answered: list[SimulatedProcess] = field(default_factory=list)  # the commands' processes
    journal_lines: int = 0
    dice: random.Random = field(init=False)  # draws what faults do
    at_line: Callable[[int, bool], None] = lambda number, after: None

    def __post_init__(self) -> None:
        self.network = links.Network(self.machines)
        self.dice = random.Random(f"world {self.seed}")
        for name in ("operator", "one", "two", "three"):
            path = os.path.join(self.directory, name)
            os.makedirs(path, exist_ok=True)
            self.machines[name] = machine = Machine(name, path)
            kept = os.path.join(self.directory, f"kept.{name}")
            os.makedirs(kept)
            states = (os.path.join(self.directory, "state"),) if name == "operator" else ()
            machine.disk = Disk((path, *states), kept)
            machine.disk.random.seed(f"disk {self.seed} {name}")
            machine.ahead, machine.rate = self.dice.choice(AHEAD), 1.0 + self.dice.choice((0.0, 2e-4, -2e-4))
        self.fleet_file = os.path.join(self.directory, "fleet.yaml")
        hosts = {
            name: {"type": "ssh", "address": name, "root": self.root(name), "python": "/usr/bin/python3", "devices": 1}
            for name in ("one", "two", "three")
        }
        Path(self.fleet_file).write_text(yaml.safe_dump({"hosts": hosts}))
        _WORLD.append(self)

    def root(self, name: str) -> str:
        return os.path.join(self.directory, name, "root")

    def paths(self, name: str) -> records.RunPaths:
        return records.RunPaths(self.root(name), RUN)

    # ------------------------------------------------------------------------------------------ operators

    def command(self, *words: str, state: str = "state") -> SimulatedProcess:
        """Start a command of the operator; its exit code and output go to ``said``."""
        from midstream import cli

        output = bytearray()
        environment = {
            "MIDSTREAM_STATE": os.path.join(self.directory, state), "MIDSTREAM_FLEET": self.fleet_file, "TERM": "dumb",
        }  # fmt: skip
        process = SimulatedProcess(
            self.machines["operator"], lambda: cli.main(list(words)), shlex.join(words), environment, output.extend
        )
        process.stderr._write = output.extend

        def note() -> None:
            process.ended.wait()
            code = process.exit_code if process.exit_code is not None else -1
            self.said.append((shlex.join(words), code, bytes(output).decode() + process.errors.decode()))
            self.answered.append(process)

        SCHEDULER.start(note, None, "note")
        return process

    # ------------------------------------------------------------------------------------------ engines

    def begin_run(self, host: str, steps: int) -> None:
        """Have a run train on a host until it has done some steps."""
        paths = self.paths(host)
        os.makedirs(paths.attempts, exist_ok=True)
        records.write_bytes(paths.config, yaml.safe_dump(config(self.root(host))).encode(), mode=0o600)
        os.makedirs(paths.attempt(1).dir)
        environment = {
            "MIDSTREAM_ROOT": self.root(host), "RUN_ID": RUN, "MIDSTREAM_ATTEMPT": "1", "MIDSTREAM_EPOCH": "1",
            "MIDSTREAM_TARGET": host, "MIDSTREAM_HOST": host,
        }  # fmt: skip
        start_engine(self.machines[host], environment, paths.attempt(1).dir, paths.attempt(1).log(0))
        self.run_until(lambda: (status := self.status(host)) is not None and status.step >= steps)

    def status(self, host: str) -> records.Status | None:
        """Return the newest attempt's status on a host, as its file says."""
        try:
            numbers = sorted(int(name) for name in os.listdir(self.paths(host).attempts) if name.isdecimal())
        except FileNotFoundError:
            return None
        found = [records.Status.read_or_none(self.paths(host).attempt(number).status(0)) for number in numbers]
        return next((status for status in reversed(found) if status is not None), None)

    def fence(self, host: str) -> records.Fence | None:
        return records.Fence.read_or_none(self.paths(host).fence)

    def trains(self) -> list[str]:
        """Return the machines on which an engine trains."""
        return [name for name, pid in engine.HISTORY.training if pid in self.machines[name].processes]

    def wait(self, command: SimulatedProcess) -> tuple[int, str]:
        """Wait for the end of a command; return its exit code and output."""
        self.run_until(lambda: command in self.answered)
        _, code, text = self.said[self.answered.index(command)]
        return code, text

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Let the world go on until the condition holds."""
        SCHEDULER.run(reached)

    def run_for(self, seconds: float) -> None:
        """Let the world go on for some virtual seconds."""
        end = SCHEDULER.now + seconds
        done: list[bool] = []

        def wait() -> None:
            SCHEDULER.park(end - SCHEDULER.now)
            done.append(True)

        SCHEDULER.start(wait, None, "clock")
        SCHEDULER.run(lambda: bool(done))


_WORLD: list[World] = []


def start_engine(machine: Machine, environment: Mapping[str, str], directory: str, log: str) -> SimulatedProcess:
    """Start an engine, with its log and its exit record."""

    def write(data: bytes) -> None:
        _append(Path(log), data)

    process = SimulatedProcess(machine, engine.main, f"engine {directory[-3:]}", environment, write)
    process.stderr._write = write

    def supervise() -> None:
        process.ended.wait()
        if machine.up and machine.booted <= SCHEDULER.now:
            SimulatedProcess(machine, lambda: engine.record_exit(directory, process.exit_code or 0), "supervisor")

    SCHEDULER.start(supervise, None, f"supervisor {directory[-3:]}")
    return process


def _spawn_attempt(
    argv: Sequence[str],
    env: Mapping[str, str],
    directory: str,
    log: str,
    launched: str,
    note: Mapping[str, Any] | None = None,
) -> records.ProcessIdentity:
    """Start a detached process, as `process_start.spawn` does."""
    del directory
    caller = present()
    assert caller is not None
    own = {key: value for key, value in env.items() if key.startswith(("MIDSTREAM_", "RUN_ID"))}
    process = start_engine(caller.machine, own, os.path.dirname(launched), log)
    machine = caller.machine
    identity = records.ProcessIdentity(
        machine.boot_id, process.pid, process.start_ticks, f"machine-{machine.name}", "pid:[1]"
    )
    records.write_json(launched, {**identity.to_json(), "argv": list(argv), **(note or {})})
    return identity


def _spawn_migration(directory: Any, *flags: str) -> None:
    """Start the process of a migration, and wait until it has locked the migration."""
    caller = present()
    assert caller is not None
    environment = dict(caller.environment)
    _append(directory.log_file, b"")
    process = SimulatedProcess(
        caller.machine, lambda: migration_process.main([directory.migration, *flags]),
        f"migration {directory.migration}", environment, lambda data: _append(directory.log_file, data),
    )  # fmt: skip
    process.stderr._write = lambda data: _append(directory.log_file, data)
    begun = directory.journal_size()
    while not (directory.is_locked() or directory.journal_size() > begun):
        if process.exit_code is not None:
            raise migration_process.MidstreamError(f"the migration's process exited: {process.errors.decode()[-400:]}")
        SCHEDULER.park(0.02)


def _append(path: Path, data: bytes) -> None:
    """Append to a log; on a full disk the line is lost."""
    with contextlib.suppress(OSError), open(path, "ab") as file:
        file.write(data)


def _open_host(name: str, entry: Any) -> links.SimulatedHost:
    return links.SimulatedHost(name, entry, _WORLD[-1].network)


_write_line = journal.Journal.write


def _counted_line(self: journal.Journal, event: str, **fields: Any) -> Any:
    """Write a line of a journal, with the faults that strike at it."""
    world = _WORLD[-1]
    number, world.journal_lines = world.journal_lines, world.journal_lines + 1
    world.at_line(number, False)
    written = _write_line(self, event, **fields)
    world.at_line(number, True)
    return written


def config(root: str) -> dict[str, Any]:
    """Return a run's config, as far as the app reads it."""
    return {
        "data": {"tokenizer": "gpt2"},
        "model": {"type": "gpt2", "seq_len": 16, "hidden_dim": 32, "num_layers": 1},
        "optimizer": {"type": "adam", "learning_rate": 1e-3},
        "trainer": {"id": RUN, "root": root, "num_train_steps": engine.STEPS, "train_batch_size": 4, "mp": "f32"},
    }


def install() -> None:
    """Connect midstream with the simulation, once."""
    machines.install_identities()
    replace_everywhere(host_pool.open_host, _open_host)
    replace_everywhere(process_start.spawn, _spawn_attempt)
    replace_everywhere(process_start.detached, list)
    replace_everywhere(process_start.kills_left_behind, lambda: False)
    replace_everywhere(migration_process._spawn, _spawn_migration)
    replace_everywhere(copy_tree.copy_tree, copies.copy_tree)
    replace_everywhere(send_files.send_files, copies.send_files)
    replace_everywhere(environments.run_command, functools.wraps(environments.run_command)(_run_command))
    replace_everywhere(input_check._read, _read_config)
    replace_everywhere(inventory.collect, dict)
    replace_everywhere(slurm.query_in_background, lambda: None)
    stub = Path(__file__).parent / "package"
    replace_everywhere(bundle.packages_directory, lambda: stub)
    links.ALL = frozenset(sys.modules) | {"midstream_host", "midstream_core"}
    journal.Journal.write = _counted_line  # type: ignore[method-assign, assignment]
    migration_process.WATCH_INTERVAL = WATCH_INTERVAL  # type: ignore[misc]
    status_file.HEARTBEAT = engine.STEP  # type: ignore[misc]


__all__ = ["World", "accelerators", "checks", "fleets", "gauges", "install", "json", "types"]


def _read_config(*_: object) -> subprocess.CompletedProcess[str]:
    """Answer as the engine's check of a config does."""
    found = {"tokenizer": "gpt2", "eos_token": None, "cache_dir": None, "texts": [], "packages": []}
    return subprocess.CompletedProcess([], 0, json.dumps(found), "")


def _run_command(argv: Sequence[str], *_: Any, **__: Any) -> environments.CommandResult:
    imports = any("importlib" in word for word in argv)
    return environments.CommandResult(
        0, json.dumps({"version": [3, 11, 7], "missing": []}) if imports else "3 11 7\n", ""
    )
