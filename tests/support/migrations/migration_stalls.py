"""Migrations between two SSH hosts in which something stalls, and the promises that are checked afterwards.

A process, a server or a link stops without notice and continues after 30 to 120 seconds. In two further cases something
is lost and nobody can detect it: the source reboots, and the operator is killed together with the source's engine.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from midstream.errors import Exit
from midstream.fleet.fleet import SshHostConfig
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.migration_state import ROLLED_BACK
from midstream_core import records
from simulators.link import Link, through
from support.migrations.migration_faults import LINES, MODES, BrokenPromiseError, Campaign, Strike, UnderWay, When

SHORTEST, LONGEST = 30.0, 120.0  # seconds of a stall
STALLS = (
    "operator", "sleep", "source host",
    "source server", "target server", "source link", "target link",
    "source engine", "target engine", "source supervisor", "target supervisor",
)  # fmt: skip
LOSSES = ("reboot before", "reboot after", "operator and source")
KINDS = (*STALLS, *LOSSES)
FIRST_LINES = 5  # of the journal, before the first call to the source
ANOTHER_BOOT = "00000000-0000-4000-8000-000000000000"


class StallCampaign(Campaign):
    """Both hosts are behind an SSH server and a link of their own."""

    patience = 900.0
    pace = 0.6  # a migration lasts minutes, and the run is not to be done before
    renewed = 600
    sshd = ""  # further lines of the servers' configuration

    def _hosts(self, env: dict[str, str]) -> tuple[SshHostConfig, SshHostConfig]:
        self.servers = {
            name: self.lab.host(name, devices=devices, sshd=self.sshd) for name, devices in (("one", 1), ("two", 2))
        }
        self.links = {name: Link(server.port) for name, server in self.servers.items()}
        self.server, self.link = self.servers["one"], self.links["one"]
        one, two = (
            replace(through(server, self.links[name].port).config, env=env) for name, server in self.servers.items()
        )
        return one, two

    def close(self) -> None:
        self.links["two"].close()
        super().close()

    def move(self, seed: int, number: int) -> dict[str, Any]:
        """Run one migration, and return what happened. Raises BrokenPromiseError."""
        draw = random.Random(f"stalls-{seed}-{number}")
        mode, kind = MODES[number % len(MODES)], KINDS[number // len(MODES) % len(KINDS)]
        first = kind == "reboot before"
        line = draw.randrange(1, FIRST_LINES if first else LINES[mode])
        seconds = draw.uniform(SHORTEST, LONGEST)
        row = {"seed": seed, "run": number, "mode": mode, "kind": kind, "line": line, "seconds": round(seconds, 1)}
        return self.struck(mode, kind, lambda events: len(events) >= line, seconds, row)

    def struck(
        self, mode: str, kind: str, when: When, seconds: float, row: dict[str, Any] | None = None, source: str = ""
    ) -> dict[str, Any]:
        """Run a migration in which ``kind`` happens for ``seconds`` once ``when`` is true for the journal's lines."""
        unsaved = kind == "reboot before"
        if unsaved:
            self.begin_unsaved()
        try:
            row = self.go(mode, when, self._strike_of(kind, seconds), row, goes_on=self.run_printed_line, source=source)
        finally:
            if unsaved:  # it saves once an hour
                self.end()
        if row.get("started_again") and "launched" not in row:
            raise BrokenPromiseError(f"{row}: the run did not run any more, and nobody said so")
        return row

    # ------------------------------------------------------------------------------------------ the run

    def begin_unsaved(self) -> None:
        """Start a run on ``one`` that trains and has no checkpoint."""
        flags, self.flags = self.flags, (*self.flags, "--trainer.checkpointer.save_interval", "1h")
        try:
            self.begin(saved=False)
        finally:
            self.flags = flags

    def end(self) -> None:
        """Let the next migration start another run."""
        for run in self.runs.values():
            run.kill()
        self.runs = {}

    # ------------------------------------------------------------------------------------------ what happens

    def _strike_of(self, kind: str, seconds: float) -> Strike:
        def strike(under_way: UnderWay) -> str:
            if kind == "operator":
                return self._stop_processes(lambda: self._operator(under_way), seconds, "its process")
            if kind == "sleep":
                return self._sleep(under_way, seconds)
            if kind == "operator and source":
                self.kill_operator(under_way)
                return f"its process, and {self._kill(under_way.source)}"
            if kind.startswith("reboot"):
                return self._reboot(under_way.source, seconds)
            side, what = kind.split()
            host = under_way.source if side == "source" else under_way.target
            if what == "link":
                return self._freeze(host, seconds)
            processes = {
                "host": lambda: [*self._sshd(host), *self._engine(host), *self._supervisor(host)],
                "server": lambda: self._sshd(host),
                "engine": lambda: self._awaited(under_way, lambda: self._engine(host)),
                "supervisor": lambda: self._awaited(under_way, lambda: self._supervisor(host)),
            }[what]
            return self._stop_processes(processes, seconds, f"the {what} of {host}")

        return strike

    def _stop_processes(self, find: Callable[[], Iterable[int]], seconds: float, what: str) -> str:
        """Send SIGSTOP, wait, and send SIGCONT."""
        pids = list(find())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds if pids else 0.0)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return what if pids else "it was over"

    def _sleep(self, under_way: UnderWay, seconds: float) -> str:
        """Simulate a sleeping laptop: its process is stopped, and its connections are cut."""

        def find() -> list[int]:
            found = self._operator(under_way)
            for pid in found:
                os.kill(pid, signal.SIGSTOP)
            for link in self.links.values():
                link.cut()
            return found

        return self._stop_processes(find, seconds, "its process and every connection")

    def _freeze(self, host: str, seconds: float) -> str:
        link = self.links[host]
        link.freeze()
        time.sleep(seconds)
        link.thaw()
        return f"the link of {host}"

    def _kill(self, host: str) -> str:
        """Kill every process of the run on a host."""
        for pid in (*self._supervisor(host), *self._engine(host)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        status = self.runs[host].status()
        return f"the engine of {host} ({status.state} at step {status.step})" if status else f"the engine of {host}"

    def _reboot(self, host: str, seconds: float) -> str:
        """Kill everything on the host, and let it answer again after a while.

        Its files then name an earlier boot: the boot id of this machine cannot be changed, so the one in the files is.
        """
        words = self._kill(host)
        server = self.servers[host]
        server.stop()
        for path in Path(self.runs[host].paths.attempts).glob("*/*.json"):
            if re.fullmatch(r"(status-\d+|launch(-\d+)?)\.json", path.name):
                value = {**json.loads(path.read_text()), "boot_id": ANOTHER_BOOT}
                records.write_json(str(path), value)
        time.sleep(seconds)
        server.start()
        return f"{host} rebooted, with {words}"

    # ------------------------------------------------------------------------------------------ processes

    def _operator(self, under_way: UnderWay) -> list[int]:
        with suppress(FileNotFoundError, ValueError):
            if under_way.directory.is_locked():
                return [int((under_way.directory.path / ".lock").read_text())]
        return []

    def _sshd(self, host: str) -> list[int]:
        """Return the server and all processes that serve its connections."""
        found, unseen = [], [self.servers[host].process.pid]
        while unseen:
            found.append(unseen.pop())
            listed = subprocess.run(
                ["ps", "-o", "pid=,comm=", "--ppid", str(found[-1])], capture_output=True, text=True
            )
            words = [line.split() for line in listed.stdout.splitlines()]
            unseen += [int(pid) for pid, name, *_ in words if name.startswith("sshd")]
        return found

    def _engine(self, host: str) -> list[int]:
        status = self.runs[host].status()
        return [status.pid] if status is not None and records.is_running(status.identity) else []

    def _supervisor(self, host: str) -> list[int]:
        run = self.runs[host]
        value = records.read_json_or_none(run.paths.attempt(run.attempt).launched(0)) if run.attempt else None
        identity = records.ProcessIdentity.from_json(value) if value else None
        return [identity.pid] if identity is not None and records.is_running(identity) else []

    def _awaited(self, under_way: UnderWay, find: Callable[[], list[int]]) -> list[int]:
        """Return what ``find`` finds, empty if the migration ends before."""
        deadline = time.monotonic() + self.patience
        while not (found := find()) and under_way.directory.is_locked() and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    # ------------------------------------------------------------------------------------------ what has to hold

    def run_printed_line(self, migration: str) -> None:
        """Run the command that was printed last."""
        directory = MigrationDirectory(migration)
        said = [event for event in directory.view().events if event.event in ("result", "phase", "note")]
        line = f"midstream --continue {migration}"  # what a follower prints where the process has exited
        if said and said[-1].event == "result":
            found = re.search(r"midstream --continue \S+", said[-1].message)
            if found is None:
                raise BrokenPromiseError(f"{migration}: no line says how it goes on: {said[-1].message}")
            line = found.group()
        ended = run_line(line)
        if "Traceback" in ended.stderr or ended.returncode not in set(Exit):
            raise BrokenPromiseError(f"{line}: exit {ended.returncode}: {ended.stderr[-1000:]}")

    def _settle(self, row: dict[str, Any], directory: MigrationDirectory, sealed_before: int) -> None:
        """Check that the last message is true and its command works; then as after any other migration."""
        result = last_result(directory.view().events)
        code = result.detail["exit_code"]
        row["said"], row["exit_code"] = result.message, code
        running = [name for name, run in self.runs.items() if run.running]
        if directory.view().state == ROLLED_BACK and code == Exit.NOT_RUNNING:
            if running or "does not run on" not in result.message:
                raise BrokenPromiseError(f"{row}: it runs on {running}")
            found = re.search(r"midstream (--fleet \S+ )?--restart \S+", result.message)
            if found is None:
                raise BrokenPromiseError(f"{row}: no command starts it again")
            line = found.group().replace("midstream ", f"midstream --fleet {self.room / 'lab/fleet.yaml'} ", 1)
            ended = run_line(line if "--fleet" not in found.group() else found.group())
            if ended.returncode:
                raise BrokenPromiseError(f"{row}: {line}: exit {ended.returncode}: {ended.stderr[-1000:]}")
            row["launched"] = True
            self._launched(row)
        elif "does not run on" in result.message:
            raise BrokenPromiseError(f"{row}: exit code {code}")
        super()._settle(row, directory, sealed_before)

    def _launched(self, row: dict[str, Any]) -> None:
        run = self.runs[row["from"]]
        run.wait(lambda run: run.running, "the run that was started again", self.patience)


def last_result(events: Sequence[Event]) -> Event:
    return next(event for event in reversed(events) if event.event == "result")


def run_line(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as a user types it."""
    words = shlex.split(line)
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=3600,
        check=False,
    )
