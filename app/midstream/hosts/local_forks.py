"""Interpreters of the local host, forked by a process.

That process has `midstream_host` imported. Where it cannot, as after a broken upgrade, every command gets a new
interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import BinaryIO

from midstream.hosts import fork_server
from midstream.hosts.child_pipes import is_readable
from midstream.hosts.fork_server import CLIENT_PROGRAMS, IMPORTED, READ_SIZE
from midstream.hosts.rpc.bootstrap import BOOTSTRAP
from midstream.printable import printable

_log = logging.getLogger(__name__)
START_TIMEOUT = 30.0  # seconds that the server may take to import its modules
SHUTDOWN_TIMEOUT = 2.0  # seconds that it may take to end
TRIES = 2  # of a request: the server may have just been killed

# Commands that are run in forked processes. Elsewhere a fork may inherit what the system's libraries do not expect.
FORKED = [sys.executable, "-I", "-c", BOOTSTRAP] if sys.platform == "linux" else []
FORKED_CLIENTS = [sys.executable, "-c", BOOTSTRAP] if sys.platform == "linux" else []  # of buckets


class ForkedChild:
    """A child of the fork server, with the needed methods of `subprocess.Popen`."""

    def __init__(self, forks: LocalForks, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self._forks = forks
        self.stdin: BinaryIO = os.fdopen(stdin, "wb")
        self.stdout: BinaryIO = os.fdopen(stdout, "rb")
        self.stderr: BinaryIO = os.fdopen(stderr, "rb")
        self._status = status
        # A child that never ends may never have a code.
        self._close_status = weakref.finalize(self, os.close, status)
        self._lines = b""  # of the status, so far
        self._code: int | None = None
        self._reading = threading.Lock()

    @property
    def pid(self) -> int:
        """Its process id. Waits until it is forked; 0 if the server has ended before."""
        with self._reading:
            while b"\n" not in self._lines and self._code is None:
                self._read()
            return int(self._lines.split(b"\n")[0] or 0)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with self._reading:
            while self._code is None and is_readable(self._status, 0.0):
                self._read()
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._reading:
                if self._code is None:
                    if not is_readable(self._status, remaining):
                        raise subprocess.TimeoutExpired("a forked interpreter", timeout or 0.0)
                    self._read()
        return self._code

    def kill(self) -> None:
        """Kill it, if it still runs.

        The server may have been stopped: one that is not forked within `SHUTDOWN_TIMEOUT` is not killed.
        """
        with self._reading:
            while b"\n" not in self._lines and self._code is None:
                if not is_readable(self._status, SHUTDOWN_TIMEOUT):
                    return
                self._read()
        self._forks.kill(self.pid)

    def _read(self) -> None:
        """Read more of the status.

        At its end without a code the server was killed, and the code is lost.
        """
        data = os.read(self._status, 64)
        self._lines += data
        if self._lines.count(b"\n") == 2:
            self._code = int(self._lines.split(b"\n")[1])
        elif not data:
            self._code = -signal.SIGKILL
        if self._code is not None:
            self._close_status()


class LocalForks:
    """A fork server, started with the first child; it ends with this process.

    Attributes:
        modules: The programs that it has imported.
    """

    def __init__(self, flag: str = "-I", modules: Sequence[str] = IMPORTED) -> None:
        """Prepare the server.

        Args:
            flag: Of its interpreter.
            modules: Programs that it imports.
        """
        self.modules = tuple(modules)
        self._flag = flag
        self._clients = list[str]()  # schemes
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._failed = False  # to start a server

    def usable(self) -> bool:
        """Wait until a server has imported its programs; False where that fails.

        A failed start is not tried again, and the reason is logged once.
        """
        with self._lock:
            if self._failed:
                return False
            try:
                server = self._running() or self._restart()
            except OSError:  # too many processes, or no interpreter: a new interpreter reports it
                return False
        failure = server.failure()
        if not failure:
            return True
        with self._lock:
            if server is self._server:  # not closed while it started
                self._server, self._failed = None, True
                _log_once(failure)
        server.close()
        return False

    def start(self) -> ForkedChild | None:
        """Start an interpreter that runs the bootstrap. None where no server is usable.

        Raises:
            OSError: There are too many open files.
        """
        ours: list[int] = []
        theirs: list[int] = []
        request = {"environment": dict(os.environ), "directory": _directory()}
        sent = False
        try:
            for child_reads in (True, False, False, False):  # stdin, stdout, stderr, status
                reading, writing = os.pipe()
                ours.append(writing if child_reads else reading)
                theirs.append(reading if child_reads else writing)
            sent = self._send(json.dumps(request).encode() + b"\n", theirs)
        finally:
            for descriptor in theirs if sent else ours + theirs:
                os.close(descriptor)
        return ForkedChild(self, *ours) if sent else None

    def prepare(self, client: str = "") -> None:
        """Start the server before the first child needs it.

        The server's start takes 0.1 s in a process of its own, and 0.5 s with the client of the buckets of scheme
        ``client``.
        """
        with self._lock:
            if not FORKED or self._failed:
                return
            new = [client] if client and client not in self._clients else []
            self._clients += new
            with contextlib.suppress(OSError):  # it has ended or cannot be started: the first child needs another one
                server = self._running()
                if server is None:
                    self._restart()
                else:
                    server.prepare(new)

    def kill(self, pid: int) -> None:
        """Kill a child. Does nothing if it has ended."""
        with self._lock, contextlib.suppress(OSError):  # the server has ended
            server = self._running()
            if server is not None:
                server.send(json.dumps({"kill": pid}).encode() + b"\n", [])

    def close(self) -> None:
        """End the server, while its children keep running."""
        with self._lock:
            server, self._server = self._server, None
            if server is not None and server.owner == os.getpid():
                server.close()

    def _send(self, text: bytes, descriptors: list[int]) -> bool:
        """Send a request to a server that is usable. Returns False where there is none."""
        for _ in range(TRIES):
            if not self.usable():
                return False
            with self._lock:
                server = self._running()
                if server is None:  # killed since
                    continue
                try:
                    server.send(text, descriptors)
                except OSError:
                    server.close()
                    self._server = None
                else:
                    return True
        return False

    def _running(self) -> _Server | None:
        """Return the server, unless it has ended."""
        # A forked copy of this process has no server: two must not write to one socket.
        if self._server is None or self._server.owner != os.getpid():
            return None
        if self._server.ended():
            self._server.close()
            self._server = None
        return self._server

    def _restart(self) -> _Server:
        self._server = _Server(self._flag, self.modules)
        with contextlib.suppress(OSError):  # it has ended already, which `usable` reports
            self._server.prepare(self._clients)
        return self._server


class _Server:
    """A fork server and this end of its socket."""

    def __init__(self, flag: str, modules: Sequence[str]) -> None:
        import midstream
        import midstream_core

        self.owner = os.getpid()
        self._starting = threading.Lock()
        self._failure: str | None = None  # empty once it has started
        places = {os.path.dirname(os.path.dirname(package.__file__ or "")) for package in (midstream, midstream_core)}
        self._control, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), BOOTSTRAP, ",".join(modules), *sorted(places)]
            self._process = subprocess.Popen(
                [sys.executable, flag, fork_server.__file__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def failure(self) -> str:
        """Wait until it has started. Returns why it has not; empty where it has."""
        with self._starting:
            if self._failure is None:
                self._failure = self._read_line()
            return self._failure

    def _read_line(self) -> str:
        line, deadline = b"", time.monotonic() + START_TIMEOUT
        with contextlib.suppress(OSError, ValueError):  # it has ended with requests unread, or was closed
            while not line.endswith(b"\n"):
                if not is_readable(self._control.fileno(), max(0.0, deadline - time.monotonic())):
                    self._process.kill()
                    return f"their server did not start within {START_TIMEOUT:.0f} s"
                data = self._control.recv(READ_SIZE)
                if not data:
                    break
                line += data
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        code = self._process.wait()
        return f"their server ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"

    def ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, text: bytes, descriptors: list[int]) -> None:
        sent = socket.send_fds(self._control, [text], descriptors) if descriptors else 0
        self._control.sendall(text[sent:])

    def prepare(self, clients: Sequence[str]) -> None:
        for scheme in clients:
            self.send(json.dumps({"client": scheme}).encode() + b"\n", [])

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(SHUTDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:  # it was stopped, or is still importing
            self._process.kill()
            self._process.wait()


@functools.cache
def _log_once(failure: str) -> None:
    """Report why programs start slower; several servers may have the same reason."""
    _log.warning(
        "midstream: programs on this machine start in new interpreters, which takes longer: %s "
        "(hint: was midstream upgraded? install it again, and restart it)",
        printable(failure)[:500],
    )


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed
        return "/"


FORKS = LocalForks()
# Not isolated from PYTHON* and the user's packages (`bootstrap.isolation`), but from the directory that it starts in.
CLIENT_FORKS = LocalForks("-P", CLIENT_PROGRAMS)
atexit.register(FORKS.close)
atexit.register(CLIENT_FORKS.close)
