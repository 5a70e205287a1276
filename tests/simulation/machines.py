"""Machines of a simulation: processes, identities, clocks, reboots.

Files are real, below a directory of the machine.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.cooperative import Event
from simulation.scheduler import BEGIN, SCHEDULER, Task

REAL_EXIT = os._exit
_real_flock = fcntl.flock
LOCK_POLL = 0.01  # virtual seconds between two tries to lock a file


class Pipe:
    """Bytes on their way from one process to another."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False  # its writer has ended
        self.changed = Event()

    def write(self, data: bytes) -> None:
        if self.closed:
            raise BrokenPipeError(32, "Broken pipe")
        self.data += data
        self.changed.set()

    def close(self) -> None:
        self.closed = True
        self.changed.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a byte or the end. False after ``timeout`` seconds."""
        while not self.data and not self.closed:
            self.changed.clear()
            if not self.changed.wait(timeout):
                return False
        return True

    def take(self, most: int) -> bytes:
        """Take bytes that are there."""
        taken = bytes(self.data[:most])
        del self.data[:most]
        return taken


class _StandardOutput(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of a simulated process."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.buffer = self  # type: ignore[assignment]

    def write(self, text: Any) -> int:
        self._write(text.encode() if isinstance(text, str) else bytes(text))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


class MachineClock:
    """Clock of a machine: ``ahead`` seconds before true time, and ``rate`` as fast."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def wall(self, now: float | None = None) -> float:
        now = SCHEDULER.now if now is None else now
        return BEGIN + now * self._machine.rate + self._machine.ahead

    def monotonic(self, now: float | None = None) -> float:
        now = SCHEDULER.now if now is None else now
        return (now - self._machine.booted) * self._machine.rate + 1000.0


@dataclass
class Activity:
    """Number of times that programs other than probes have worked on a root.

    ``timed``: what is read there changes with time, too.
    """

    count: int = 0
    timed: bool = False


@dataclass
class Machine:
    """A simulated machine, with real files below ``directory``."""

    name: str
    directory: str
    ahead: float = 0.0
    rate: float = 1.0
    up: bool = True
    full: bool = False  # no file can be made on its disk
    disk: Any = None  # a `disks.Disk`, which loses what is not durable at a crash
    boots: int = 1
    booted: float = 0.0  # virtual seconds
    processes: dict[int, SimulatedProcess] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)  # one of the machines that share a root
    clock: MachineClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = MachineClock(self)
        self._pids = itertools.count(100)

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    def next_pid(self) -> int:
        return next(self._pids)

    def crash(self) -> str:
        """Kill every process at once, and lose what is not durable. Return what was lost, in words."""
        self.up = False
        for process in list(self.processes.values()):
            process.kill()
        return self.disk.lose() if self.disk is not None else ""

    def boot(self, jump: float = 0.0) -> None:
        """Start the machine again, with a new boot id and no processes; its clock jumps by that many seconds."""
        self.up, self.booted = True, SCHEDULER.now
        self.ahead += jump
        self.boots += 1


class SimulatedProcess:
    """A process of a machine. ``run`` is its main function; its result is the exit code."""

    def __init__(
        self,
        machine: Machine,
        run: Callable[[], object],
        name: str,
        environment: Mapping[str, str] | None = None,
        output: Callable[[bytes], object] | None = None,
        argv: list[str] | None = None,
    ) -> None:
        self.machine, self.name = machine, name
        self.clock = machine.clock
        self.pid = machine.next_pid()
        self.start_ticks = int(SCHEDULER.now * 100) + self.pid
        self.environment = {"HOME": machine.directory, "USER": "user", "PATH": "/usr/bin:/bin", **(environment or {})}
        self.argv = argv or [name]
        self.stdin: Pipe | None = None
        self.stdout = _StandardOutput(output or _discard)
        self.errors = bytearray()
        self.stderr = _StandardOutput(self.errors.extend)
        self.handlers: dict[int, Any] = {}
        self.ended = Event()
        self.exit_code: int | None = None
        self.looks = False  # it writes nothing
        self.hung = False  # whether it was frozen once: others cannot know that it goes on
        self.held: list[Task] | None = None  # tasks that became ready while it is frozen; None: it is not
        self.after_save: Callable[[], None] | None = None  # of an engine: strikes once, after its next save
        self.tasks: list[Task] = []
        self._locks: set[int] = set()  # descriptors that it holds a lock on
        machine.processes[self.pid] = self
        self._run = run
        self.start_task(self._main, name)

    def __str__(self) -> str:
        return f"{self.name} of {self.machine.name} (pid {self.pid})"

    def start_task(self, run: Callable[[], object], name: str) -> Task:
        """Start a thread of this process."""
        task = SCHEDULER.start(run, self, f"{self.machine.name}/{name}")
        self.tasks.append(task)
        return task

    def enter(self) -> None:
        """Make this process's environment the present one."""
        os.environ._data = self.environment  # type: ignore[attr-defined]
        sys.stdout, sys.stderr, sys.argv = self.stdout, self.stderr, self.argv

    def worked(self) -> None:
        if not self.looks:
            self.machine.activity.count += 1

    def _main(self) -> None:
        code = 0
        try:
            result = self._run()
            code = result if isinstance(result, int) else 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                self.stderr.write(error.code + "\n")
        except Exception:  # noqa: BLE001  its stderr has it
            self.stderr.write(traceback.format_exc())
            code = 1
        self.end(code)

    def end(self, code: int) -> None:
        """End with an exit code: no task of it runs again."""
        if self.exit_code is not None:
            return
        self.exit_code = code
        self.machine.activity.count += 1
        self.machine.processes.pop(self.pid, None)
        for descriptor in self._locks:
            _real_flock(descriptor, fcntl.LOCK_UN)
        self._locks.clear()
        for task in self.tasks:
            task.abandoned = True
        self.ended.set()
        if SCHEDULER.current is not None and SCHEDULER.current.owner is self:
            SCHEDULER.vanish()

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.end(-signal.SIGKILL)

    def deliver(self, number: int) -> None:
        """Handle a signal as Python does: by its handler, or by ending."""
        handler = self.handlers.get(number, signal.SIG_DFL)
        if number == signal.SIGKILL or handler == signal.SIG_DFL:
            self.end(-number)
        elif handler != signal.SIG_IGN:
            self.start_task(lambda: handler(number, None), f"signal {number}")

    def lock(self, descriptor: int, operation: int) -> None:
        """Lock a file, without blocking the other processes of the simulation."""
        if operation & fcntl.LOCK_UN:
            self._locks.discard(descriptor)
            return _real_flock(descriptor, operation)
        while True:
            try:
                _real_flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
                SCHEDULER.park(LOCK_POLL)
            else:
                self._locks.add(descriptor)
                return None

    def unlock_closed(self, descriptor: int) -> None:
        """Forget a lock whose file was closed."""
        self._locks.discard(descriptor)


def _discard(data: bytes) -> None:
    del data


def present() -> SimulatedProcess | None:
    """Return the process that runs now; None in the simulation itself."""
    owner = SCHEDULER.current.owner if SCHEDULER.current is not None else None
    return owner if isinstance(owner, SimulatedProcess) else None
