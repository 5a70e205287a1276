"""A program in a terminal of its own: its keys, its output, its processor time and memory."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path

SIZE = (45, 160)
PATIENCE = 90.0  # seconds for a program to load a million steps


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

    def ended(self, timeout: float) -> None:
        """Read until the process has ended. TimeoutError if it does not."""
        deadline = time.perf_counter() + timeout
        while self.process.poll() is None:
            if time.perf_counter() > deadline:
                raise TimeoutError(self._text[-2000:].decode(errors="replace"))
            with contextlib.suppress(OSError):  # the terminal has no writer any more
                if select.select([self._master], [], [], 0.01)[0]:
                    os.read(self._master, 1 << 16)

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
