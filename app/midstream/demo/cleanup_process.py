"""Ends what a demo has started, however the demo itself ends: by a key, a signal, or with its terminal.

``python -m midstream.demo.cleanup_process ROOT LOCK`` waits in a session of its own until its stdin closes. Where the
demo did
not write `DONE` to it before, the keeper ends migrations' processes and engines. It inherits the demo's lock (``LOCK``
is the descriptor's number), so that no other demo begins there until it is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from midstream.demo.directory import Place
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import Hosts
from midstream.migrate.execution.migration_directory import MigrationDirectory, list_migrations

MARK = "MIDSTREAM_DEMO"  # in the environment of all that a demo starts: the demo's directory
DONE = b"done"
SAVE_TIMEOUT = 120.0  # seconds that an engine may take to save and to end
POLL = 0.2
QUIET = 3  # looks in a row that find nothing: what is just being started is found, too
LONGEST_PID = 20  # bytes of a lock file with a pid


class Keeper:
    """The keeper's process, seen from the demo."""

    def __init__(self, place: Place):
        os.environ[MARK] = str(place.root)
        with (place.root / "keeper.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(place.root), str(place.descriptor)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(place.descriptor,),
                cwd="/",
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def dismiss(self) -> None:
        """Everything has ended: there is nothing left to do for it."""
        self._child.communicate(DONE)
        os.environ.pop(MARK, None)


def end_everything(fleet: Fleet, hosts: Hosts, root: Path, say: Callable[[str], None], spare: set[int]) -> None:
    """End the processes of the fleet's migrations, save and stop its runs, then end what is left. ``spare``: pids that
    are left alone. Afterwards nothing of the demo runs, and a migration that was under way can be continued."""
    _end_migrations(fleet, say)
    _stop_runs(fleet, hosts, say)
    quiet = 0
    while quiet < QUIET:
        found = [pid for pid in marked(root) if pid not in spare]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(POLL)


def _end_migrations(fleet: Fleet, say: Callable[[str], None]) -> None:
    for view in list_migrations(fleet):
        directory, told = MigrationDirectory(view.migration), False
        while directory.is_locked():
            with contextlib.suppress(OSError, ValueError):  # it ends by itself at this moment
                os.kill(int((directory.path / ".lock").read_bytes()[:LONGEST_PID]), signal.SIGKILL)
            if not told:
                say(f"ending the move of {view.plan.run_id}; the next midstream --demo continues it")
                told = True
            time.sleep(POLL)


def living(fleet: Fleet, hosts: Hosts) -> Iterator[tuple[str, str, int]]:
    """(host, run, attempt) of every engine that runs."""
    for name in fleet.hosts:
        host = hosts.get(name)
        for run_id in host.call("runs.run_state.list_runs", root=host.root):
            attempt = host.call("runs.run_state.running_attempt", root=host.root, run_id=run_id)
            if attempt:
                yield name, run_id, attempt


def _stop_runs(fleet: Fleet, hosts: Hosts, say: Callable[[str], None]) -> None:
    """Ask every engine to save and to end; one that does not in time is ended."""
    asked: set[tuple[str, str, int]] = set()
    deadline = time.monotonic() + SAVE_TIMEOUT
    try:
        while left := list(living(fleet, hosts)):
            late = time.monotonic() > deadline
            for name, run_id, attempt in left:
                if late or (name, run_id, attempt) not in asked:
                    host = hosts.get(name)
                    how = "SIGKILL" if late else "SIGTERM"
                    host.call("runs.run_state.signal", root=host.root, run_id=run_id, attempt=attempt, name=how)
                    asked.add((name, run_id, attempt))
                    what = (
                        "it does not end by itself"
                        if late
                        else "it saves, and the next midstream --demo goes on with it"
                    )
                    say(f"stopping the demo's run on {name}; {what}")
            time.sleep(POLL)
    except HostError as error:  # a damaged run directory, say: what runs is found by its mark
        say(f"midstream: {error}")


def marked(root: Path) -> list[int]:
    """Pids of midstream's processes with this demo's mark in their environment, this process left out; none where the
    system does not show environments."""
    mark = f"{MARK}={root}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            # A shell that a person opened from the screen, and what they started there, is not the demo's.
            if b"midstream" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def main() -> int:
    """The keeper's own process."""
    from midstream.fleet.fleet_file import load_fleet

    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    root, lock = Path(sys.argv[1]), int(sys.argv[2])
    if sys.stdin.buffer.read() == DONE:
        return 0
    Place(root, lock, ending=True)
    fleet = load_fleet(root / "fleet.yaml")
    hosts = Hosts(fleet)
    try:
        end_everything(fleet, hosts, root, lambda line: print(line, flush=True), set())
    except MidstreamError as error:
        print(f"midstream: {error}", flush=True)
        return int(error.code)
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
