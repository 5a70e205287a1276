"""A process that forks interpreters which have `midstream_host` imported.

Standard library only; Linux.

Compiling the modules takes a new interpreter 0.1 s of processor time, the client of a bucket 0.4 s, a fork 3 ms. The
local host starts this file with its end of a socket as argument; `local_forks` has the other end. A request is one line
of JSON: ``{"environment": ..., "directory": ...}`` with four descriptors (stdin, stdout, stderr, status) forks,
``{"kill": PID}`` kills a child, ``{"client": SCHEME}`` imports the client of a kind of bucket. The status of a child
gets its process id and, when it has ended, its exit code, a line each. The socket gets one line: empty once the modules
are imported, else the error.

The server has no thread, so a fork copies a state that is complete. The server ends with its socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

from midstream_core.json_types import JsonValue

# With all that they need; other modules are compiled by the child. The programs of a copy are here because nothing else
# of a copy goes on while they start.
IMPORTED = (
    "midstream_host.machine.probe",
    "midstream_host.verify.objects",
    "midstream_host.copy.session",
    "midstream_host.copy.disk_receiver",
    "midstream_host.copy.sender",
)
LIBRARIES = ("ssl",)  # that these import where they connect, which takes 25 ms
CLIENT_PROGRAMS = tuple(
    f"midstream_host.bucket.{name}" for name in ("disk_download", "disk_upload", "receiver", "sender", "session")
)
CLIENTS = "midstream_core.object_store.open_bucket"
DESCRIPTORS = 4
READ_SIZE = 1 << 16


class ForkServer:
    """The server: `serve` returns in each child that it forks, and not in the server."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._status: dict[int, int] = {}  # child -> its status
        self._text = b""  # that was received, and is not answered yet
        self._descriptors = deque[list[int]]()  # those of each request to come
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Fork a child for each request. End the server when its socket is closed."""
        while True:
            ready = select.select([self._control, self._woken], [], [])[0]
            if self._woken in ready:
                os.read(self._woken, READ_SIZE)
                self._reap()
            if self._control in ready:
                self._read()
                if any(self._answer(request) for request in self._requests()):
                    return

    def _read(self) -> None:
        try:
            data, received, flags, _ = socket.recv_fds(self._control, READ_SIZE, DESCRIPTORS)
        except ConnectionResetError:  # closed by a process that did not read this one's line
            os._exit(0)
        if not data:
            os._exit(0)
        self._text += data
        if received or flags & socket.MSG_CTRUNC:  # this process may have too many open files for all of them
            self._descriptors.append(received)

    def _requests(self) -> Iterator[dict[str, JsonValue]]:
        """Yield the complete requests; several may arrive at once, with a part of another."""
        while b"\n" in self._text:
            line, _, self._text = self._text.partition(b"\n")
            yield json.loads(line)

    def _answer(self, request: dict[str, Any]) -> bool:
        """Do what was requested. Returns True in a child."""
        if "kill" in request:
            if request["kill"] in self._status:  # not reaped yet, so no other process has its number
                os.kill(request["kill"], signal.SIGKILL)
            return False
        if "client" in request:
            _prepare_client(request["client"])
            return False
        return self._fork(request, self._descriptors.popleft())

    def _fork(self, request: dict[str, JsonValue], descriptors: list[int]) -> bool:
        """Fork a child. Returns True in the child.

        Where that is not possible the request has failed, and other children run on.
        """
        child = 0
        if len(descriptors) == DESCRIPTORS:
            *standard, status = descriptors
            try:
                child = os.fork()
            except OSError as error:  # too many processes, or too little memory
                _refuse(error, standard[2], status)
            else:
                if child == 0:
                    _become(request, standard)
                    return True
                self._status[child] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)
        if child:
            self._report(child, child)
        return False

    def _reap(self) -> None:
        while self._status:
            try:
                child, state = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not child:
                return
            self._report(child, os.waitstatus_to_exitcode(state))
            os.close(self._status.pop(child))

    def _report(self, child: int, number: int) -> None:
        with contextlib.suppress(OSError):  # its reader has exited
            os.write(self._status[child], b"%d\n" % number)


def _refuse(error: OSError, stderr: int, status: int) -> None:
    """Report a child that cannot be forked as one that has failed, with process id 0."""
    with contextlib.suppress(OSError):  # its reader has exited
        os.write(stderr, f"no process can be forked: {error.strerror}\n".encode())
        os.write(status, b"0\n1\n")


def _become(request: dict[str, Any], standard: list[int]) -> None:
    """Make the child like a new interpreter.

    Session, signals, descriptors, environment and directory are set.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    _close_others()
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    with contextlib.suppress(OSError):  # removed since; a new interpreter starts in it all the same
        os.chdir(request["directory"])


def _close_others() -> None:
    """Close all descriptors but the standard ones.

    Python's builds for old systems close each number up to the limit with `os.closerange`, and containers have limits
    of a billion.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            if int(name) > 2:
                os.close(int(name))


def _prepare_client(scheme: str) -> None:
    # Missing or broken packages, or settings: the program that needs the client reports them.
    with contextlib.suppress(Exception):
        importlib.import_module(CLIENTS).prepare_client(scheme)
    _freeze()


def _freeze() -> None:
    """Exempt what was imported from collections.

    The first one of a child would copy all pages.
    """
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve until the socket is closed.

    A child runs the bootstrap that a new interpreter gets as ``-c``.
    """
    descriptor, bootstrap, modules, *places = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(descriptor))
    path = sys.path.copy()
    sys.path[0:0] = places
    error = _import((*LIBRARIES, *modules.split(",")))
    with contextlib.suppress(OSError):  # its process has exited
        control.sendall(error.encode() + b"\n")
    if error:
        return
    sys.path[:] = path
    sys.argv[1:] = []
    _freeze()
    ForkServer(control).serve()
    control.detach()  # closed by the child already
    code = run(bootstrap)
    # As at the end of an interpreter: the idle threads of pools are ended, and others awaited, but no daemons.
    cast(Any, threading)._shutdown()
    sys.stderr.flush()
    os._exit(code)  # taking the interpreter apart would copy the pages that it shares, for 20 ms


def _import(names: Sequence[str]) -> str:
    """Import modules. Returns the error on one line; empty where there is none."""
    try:
        for name in names:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 (a broken installation raises anything)
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def run(bootstrap: str) -> int:
    """Run the bootstrap. Returns the exit code that a new interpreter would have."""
    try:
        exec(compile(bootstrap, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 (as at the end of an interpreter)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
