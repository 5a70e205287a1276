"""Interpreters of the local host, forked by a process.

That process has `midstream.remote` imported.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import BinaryIO

from midstream.hosts import fork_server
from midstream.hosts.fork_server import CLIENT_PROGRAMS, IMPORTED
from midstream.hosts.rpc.bootstrap import BOOTSTRAP

SHUTDOWN_TIMEOUT = 2.0  # seconds that the server may take to end

# Commands that are run in forked processes. Elsewhere a fork may inherit what the system's libraries do not expect.
FORKED = [sys.executable, "-I", "-c", BOOTSTRAP] if sys.platform == "linux" else []
FORKED_CLIENTS = [sys.executable, "-c", BOOTSTRAP] if sys.platform == "linux" else []  # of buckets


class ForkedChild:
    """A child of the fork server.

    It has the methods of `subprocess.Popen` that are needed.
    """

    def __init__(self, forks: LocalForks, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self._forks = forks
        self.stdin: BinaryIO = os.fdopen(stdin, "wb")
        self.stdout: BinaryIO = os.fdopen(stdout, "rb")
        self.stderr: BinaryIO = os.fdopen(stderr, "rb")
        self._status = status
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
            while self._code is None and select.select([self._status], [], [], 0)[0]:
                self._read()
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._code is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._reading:
                if self._code is None:
                    if not select.select([self._status], [], [], left)[0]:
                        raise subprocess.TimeoutExpired("a forked interpreter", timeout or 0.0)
                    self._read()
        return self._code

    def kill(self) -> None:
        """Kill it, if it still runs."""
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
            os.close(self._status)


class LocalForks:
    """A fork server of this process.

    It is started with the first child, and ends with this process.

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

    def start(self) -> ForkedChild:
        """Start an interpreter that runs the bootstrap.

        Raises:
            OSError: Neither it nor a server can be started.
        """
        ours: list[int] = []
        theirs: list[int] = []
        for child_reads in (True, False, False, False):  # stdin, stdout, stderr, status
            reading, writing = os.pipe()
            ours.append(writing if child_reads else reading)
            theirs.append(reading if child_reads else writing)
        request = {"environment": dict(os.environ), "directory": _directory()}
        try:
            self._send(json.dumps(request).encode() + b"\n", theirs)
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ForkedChild(self, *ours)

    def prepare(self, client: str = "") -> None:
        """Start the server before the first child needs it.

        It takes 0.1 s in a process of its own, and 0.5 s for the client of the buckets of a scheme, ``client``.
        """
        with self._lock:
            if not FORKED:
                return
            new = [client] if client and client not in self._clients else []
            self._clients += new
            with contextlib.suppress(OSError):  # it has ended or cannot be started: the first child needs another one
                if not self._running():
                    self._restart()
                elif new and self._server is not None:
                    self._server.prepare(new)

    def kill(self, pid: int) -> None:
        """Kill a child. Does nothing if it has ended."""
        with self._lock, contextlib.suppress(OSError):  # the server has ended
            if self._running() and self._server is not None:
                self._server.send(json.dumps({"kill": pid}).encode() + b"\n", [])

    def close(self) -> None:
        """End the server. Its children keep running."""
        with self._lock:
            server, self._server = self._server, None
            if server is not None and server.owner == os.getpid():
                server.close()

    def _send(self, text: bytes, descriptors: list[int]) -> None:
        """Send a request; to a new server if there is none, or if it has ended."""
        with self._lock:
            if self._running() and self._server is not None:
                try:
                    self._server.send(text, descriptors)
                    return
                except OSError:
                    self._server.close()
            self._restart().send(text, descriptors)

    def _running(self) -> bool:
        # A forked copy of this process has no server: two must not write to one socket.
        return self._server is not None and self._server.owner == os.getpid()

    def _restart(self) -> _Server:
        self._server = _Server(self._flag, self.modules)
        self._server.prepare(self._clients)
        return self._server


class _Server:
    """A fork server and this end of its socket."""

    def __init__(self, flag: str, modules: Sequence[str]) -> None:
        import midstream
        import midstream_engine

        self.owner = os.getpid()
        places = {os.path.dirname(os.path.dirname(each.__file__ or "")) for each in (midstream, midstream_engine)}
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
