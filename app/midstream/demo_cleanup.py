"""Cleanup process of a demo, which ends the demo's processes after any exit.

The demo may end by a key, a signal, or with its terminal.

``python -m midstream.demo_cleanup ROOT LOCK`` waits in its own session until its stdin closes. Unless the demo
has written `DONE` to it, it ends migration processes and engines. It inherits the demo's lock (``LOCK`` is the
descriptor's number), so that no other demo starts in the directory before it has finished.
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

from midstream.demo_directory import DemoDirectory
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.migration_directory import MigrationDirectory, list_migrations
from midstream_host.runs import run_state

MARK = "MIDSTREAM_DEMO"  # environment variable of the demo's processes: its directory
DONE = b"done"
SAVE_TIMEOUT = 120.0  # seconds for an engine to save and exit
POLL_INTERVAL = 0.2  # seconds
QUIET_POLLS = 3  # consecutive polls without a process: one that is being started is found too
MAX_PID_BYTES = 20  # bytes read from a lock file with a pid


class CleanupProcess:
    """Handle of the cleanup process in the demo."""

    def __init__(self, directory: DemoDirectory) -> None:
        os.environ[MARK] = str(directory.root)
        with (directory.root / "cleanup.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(directory.root), str(directory.descriptor)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(directory.descriptor,),
                cwd="/",
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def dismiss(self) -> None:
        """Exit without cleanup: the demo has ended its processes."""
        self._child.communicate(DONE)
        os.environ.pop(MARK, None)


def end_processes(
    hosts: HostPool, root: Path, report: Callable[[str], None], spare: set[int], *, continued: bool
) -> None:
    """End the demo's processes except the pids ``spare``: no process of it then runs.

    Migration processes end first, runs are saved and stopped, and the remaining processes are killed. An interrupted
    migration can be continued.

    Args:
        hosts: Connections to the fleet's hosts.
        root: Directory of the demo, by which its processes are found.
        report: Receives the progress.
        spare: Pids that are not killed.
        continued: The next demo continues the run and its migration, as far as they are.
    """
    later = "; the next midstream --demo continues it" if continued else ""
    _end_migrations(hosts.fleet, report, later)
    _stop_runs(hosts, report, later)
    quiet = 0
    while quiet < QUIET_POLLS:
        pids = [pid for pid in marked_processes(root) if pid not in spare]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if pids else quiet + 1
        time.sleep(POLL_INTERVAL)


def _end_migrations(fleet: Fleet, report: Callable[[str], None], later: str) -> None:
    for view in list_migrations(fleet):
        directory, reported = MigrationDirectory(view.migration), False
        while directory.is_locked():
            with contextlib.suppress(OSError, ValueError):  # the process has just exited
                os.kill(int((directory.path / ".lock").read_bytes()[:MAX_PID_BYTES]), signal.SIGKILL)
            if not reported:
                report(f"ending the migration of {view.plan.run_id}{later}")
                reported = True
            time.sleep(POLL_INTERVAL)


def running_engines(hosts: HostPool) -> Iterator[tuple[str, str, int]]:
    """Yield (host, run, attempt) of every running engine."""
    for name in hosts.fleet.hosts:
        host = hosts.get(name)
        for run_id in host.call(run_state.list_runs)(root=host.root):
            attempt = host.call(run_state.running_attempt)(root=host.root, run_id=run_id)
            if attempt:
                yield name, run_id, attempt


def _stop_runs(hosts: HostPool, report: Callable[[str], None], later: str) -> None:
    """Request every engine to save and exit; kill those that exceed `SAVE_TIMEOUT`."""
    signalled: set[tuple[str, str, int]] = set()
    deadline = time.monotonic() + SAVE_TIMEOUT
    try:
        while engines := list(running_engines(hosts)):
            late = time.monotonic() > deadline
            for name, run_id, attempt in engines:
                if late or (name, run_id, attempt) not in signalled:
                    host = hosts.get(name)
                    how = "SIGKILL" if late else "SIGTERM"
                    host.call(run_state.signal)(root=host.root, run_id=run_id, attempt=attempt, name=how)
                    signalled.add((name, run_id, attempt))
                    what = "it did not exit in time" if late else f"it saves first{later}"
                    report(f"stopping the demo's run on {name}: {what}")
            time.sleep(POLL_INTERVAL)
    except HostError as error:  # such as a damaged run directory; its processes are found by their mark
        report(f"midstream: {error}")


def marked_processes(root: Path) -> list[int]:
    """Return pids of midstream processes with this demo's mark, without this one.

    The mark is in their environment.
    Empty where the system does not expose environments.
    """
    mark = f"{MARK}={root}".encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # exited, or of another user
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            # A shell opened from the screen, and programs started in it, belong to the user.
            if b"midstream" in (entry / "cmdline").read_bytes():
                pids.append(int(entry.name))
    return [pid for pid in pids if pid != os.getpid()]


def main() -> int:
    """Run the cleanup process."""
    from midstream.fleet.fleet_file import load_fleet

    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    root, lock = Path(sys.argv[1]), int(sys.argv[2])
    if sys.stdin.buffer.read() == DONE:
        return 0
    DemoDirectory(root, lock, ending=True)
    fleet = load_fleet(root / "fleet.yaml")
    hosts = HostPool(fleet)
    try:
        end_processes(hosts, root, lambda line: print(line, flush=True), set(), continued=False)
    except MidstreamError as error:
        print(f"midstream: {error}", flush=True)
        return int(error.code)
    finally:
        hosts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
