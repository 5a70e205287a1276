"""A trainer's processes on this node: started by the driver, or adopted running.

A signal goes to the launcher, or to every process where midstream has started one for each device. One rank alone
never gets a signal: the others would wait for it in a collective for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Set

from midstream_core import records
from midstream_host.driver.marked_processes import MARK, POLL_INTERVAL, end_marked, marked

PR_SET_PDEATHSIG = 1


class TrainerProcess(Protocol):
    """A trainer that runs on this node."""

    @property
    def pids(self) -> List[int]:
        """The processes that get signals."""
        ...

    def poll(self) -> Optional[str]:
        """Return how it ended: ``exit code 0``, ``SIGTERM``; None while it runs."""
        ...

    def signal(self, name: str) -> None:
        """Send a signal to the launcher."""
        ...

    def end(self) -> List[int]:
        """Kill all of its processes; return those that still run."""
        ...


class StartedTrainer:
    """A trainer that this driver has started."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        directory: str,
        mark: str,
    ) -> None:
        """Start one process for each command.

        Raises OSError where a program cannot be started.
        """
        self._mark = mark
        self._children: List[subprocess.Popen[bytes]] = []
        try:
            for command, environment in zip(commands, environments):
                self._children.append(
                    subprocess.Popen(
                        list(command),
                        env={**environment, MARK: mark},
                        cwd=directory,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                        preexec_fn=_killed_with(os.getpid()),
                    )
                )
        except OSError:
            end_marked(mark)
            raise

    @property
    def pids(self) -> List[int]:
        return [child.pid for child in self._children]

    def poll(self) -> Optional[str]:
        codes = [child.poll() for child in self._children]
        failed = [code for code in codes if code]
        if any(code is None for code in codes) and not failed:
            return None
        if any(code is None for code in codes):  # one process of several has failed: the others wait for it for good
            self.end()
        return _how(failed[0] if failed else 0)

    def signal(self, name: str) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.Signals[name])

    def running(self) -> Set[int]:
        """Return every process of the trainer that runs, workers included."""
        return marked(self._mark)

    def end(self) -> List[int]:
        tree: Dict[int, records.ProcessIdentity] = {}  # with those that were started without the mark
        for child in self._children:
            tree.update(_descendants(child.pid))
        running = end_marked(self._mark)
        running += end_processes(list(tree.values()))
        for child in self._children:
            child.poll()
        return running


class Adopted:
    """A trainer that was started by a user: known by its launcher's identity."""

    def __init__(self, identity: records.ProcessIdentity) -> None:
        self._identity = self.identity = identity
        self._tree: Dict[int, records.ProcessIdentity] = {}

    @property
    def pids(self) -> List[int]:
        return [self._identity.pid]

    def poll(self) -> Optional[str]:
        self._find_descendants()
        return None if records.is_running(self._identity) else "exit code unknown: it was adopted"

    def signal(self, name: str) -> None:
        if records.is_running(self._identity):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self._identity.pid, signal.Signals[name].value)

    def end(self) -> List[int]:
        self._find_descendants()
        return end_processes([self._identity, *self._tree.values()])

    def _find_descendants(self) -> None:
        if records.is_running(self._identity):  # another process may have the number of one that has ended
            self._tree.update(_descendants(self._identity.pid))


def started_at(identity: records.ProcessIdentity) -> float:
    """Return when a process was started, in seconds since 1970 by this host's clock."""
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    return time.time() - uptime + identity.start_ticks / os.sysconf("SC_CLK_TCK")


def end_processes(processes: Sequence[records.ProcessIdentity], timeout: float = 30.0) -> List[int]:
    """Kill processes and their descendants; return those left after ``timeout`` s."""
    deadline, by_pid = time.monotonic() + timeout, {process.pid: process for process in processes}
    while True:
        for process in processes:
            if records.is_running(process):
                by_pid.update(_descendants(process.pid))
        running = [process for process in by_pid.values() if records.is_running(process)]
        if not running or time.monotonic() > deadline:
            return [process.pid for process in running]
        for process in running:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_INTERVAL)


def _descendants(pid: int) -> Dict[int, records.ProcessIdentity]:
    """Return the running processes below a process."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open("/proc/{}/stat".format(name), encoding="utf-8", errors="replace") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    descendants: Dict[int, records.ProcessIdentity] = {}
    queue = list(children.get(pid, ()))
    while queue:
        process_id = queue.pop()
        identity = records.identify(process_id)
        if identity is not None and process_id not in descendants:
            descendants[process_id] = identity
            queue += children.get(process_id, ())
    return descendants


def _how(code: int) -> str:
    return "exit code {}".format(code) if code >= 0 else signal.Signals(-code).name


def _killed_with(parent: int) -> Callable[[], None]:
    """Return what a child runs before exec: it is killed when the driver exits.

    The function also unblocks signals.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # nothing may be imported between fork and exec

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)

    return prepare
