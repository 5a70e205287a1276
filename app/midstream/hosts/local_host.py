"""The operator's machine as a host."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, cast

from midstream.errors import ConnectionLostError, HostError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.child_pipes import TimedPipe, WritingPipe
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import ANSWER_LIMIT, CALL_TIMEOUT, Completed, P, Process, R
from midstream.hosts.local_forks import CLIENT_FORKS, FORKED, FORKED_CLIENTS, FORKS, ForkedChild, LocalForks
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.answer_limits import run_to_end, too_large
from midstream.hosts.rpc.remote_call import Job
from midstream.hosts.shell import run_shell
from midstream.hosts.stderr_tail import StderrTail

SHUTDOWN_TIMEOUT = 2.0  # seconds that a program may take to exit once its stdin is closed
STDERR_TIMEOUT = 1.0  # seconds that the rest of stderr may take after the exit
READ_TIMEOUT = 2.0  # seconds that a read of another thread may take after the exit


class LocalProcess:
    """A child process with open pipes. ``host`` is its host's name in messages.

    ``imported``: modules that the child has, if it is an interpreter that waits for its job.
    """

    def __init__(
        self, child: subprocess.Popen[bytes] | ForkedChild, host: str, imported: frozenset[str] = frozenset()
    ) -> None:
        self._child = child
        self.imported = imported
        self._closing = threading.Lock()
        self.host = host
        with contextlib.ExitStack() as started:
            started.callback(_abandon, child)  # where there are too many open files, or threads
            self._writing = started.enter_context(WritingPipe(_taken(child.stdin)))
            self._reading = started.enter_context(TimedPipe(_taken(child.stdout)))
            self.stdin = cast(BinaryIO, io.BufferedWriter(self._writing))
            self.stdout = cast(BinaryIO, io.BufferedReader(self._reading, 1 << 16))
            self._stderr = StderrTail(cast(BinaryIO, child.stderr), "local-stderr")
            started.pop_all()

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        def check() -> None:
            if stderr and self._stderr.size > stderr:
                raise too_large(self.host, "a command, on stderr,", stderr)

        self._reading.deadline, self._reading.check = deadline, check

    def wait(self, timeout: float | None = None) -> int:
        deadline = Deadline(timeout)
        while True:
            try:
                code = self._child.wait(deadline.step)
                break
            except subprocess.TimeoutExpired as error:
                if deadline.count():
                    raise TimeoutError(f"pid {self._child.pid} still runs after {timeout} s") from error
        self._stderr.join(STDERR_TIMEOUT)
        return code

    def stderr_text(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        with self._closing:  # a reader that this ends may close it too
            self._close()

    def _close(self) -> None:
        # Not the buffered streams: another thread may have their locks, and a flush would block for ever if the child
        # never reads. Closing one frees its buffer, and a thread that waits for its lock would use it afterwards.
        self._writing.end()
        if self._child.poll() is None:
            self._reading.end(0.0)
            try:
                self._child.wait(SHUTDOWN_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._child.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk that hangs
                    self._child.wait(SHUTDOWN_TIMEOUT)
        self._stderr.close(STDERR_TIMEOUT)
        self._writing.close()
        if self._reading.end(READ_TIMEOUT):
            self._reading.close()
        else:
            self._reading.leave()


def _abandon(child: subprocess.Popen[bytes] | ForkedChild) -> None:
    """End a child, of which not all pipes could be taken."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(SHUTDOWN_TIMEOUT)
    for pipe in (child.stdout, child.stderr):
        with contextlib.suppress(ValueError):  # it was taken
            cast(BinaryIO, pipe).close()


def _taken(stream: Any) -> int:
    """Return a descriptor of a child's pipe, in place of ``stream``.

    Nothing was read from the stream, or written to it.
    """
    with stream.detach() as raw:
        return os.dup(raw.fileno())


class LocalHost:
    """The Host of ``type: local``. Commands are children of this process."""

    def __init__(self, name: str, config: HostConfig, *, runs_engines: bool = False) -> None:
        """Create the host.

        ``runs_engines``: it is a host of the fleet file, which has to run Linux.
        """
        self.name = name
        self._runs_engines = runs_engines
        self.config = config
        self.root = os.path.abspath(os.path.expanduser(config.root))
        self.remote_python = sys.executable

    def connect(self) -> None:
        """Raise HostError where this machine cannot run engines; it is always reachable."""
        self._check_platform()

    def _check_platform(self) -> None:
        if self._runs_engines and sys.platform != "linux":
            raise HostError(
                f"{self.name}: type: local needs Linux, and this machine runs {platform.system()}",
                "engines run on hosts of type ssh; remove it from the fleet file",
            )

    def with_new_connection(self) -> LocalHost:
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Job = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        try:
            process = self._start(argv, env)
        except FileNotFoundError:
            return Completed(127, b"", f"{argv[0]}: command not found\n".encode())
        except PermissionError:
            return Completed(126, b"", f"{argv[0]}: cannot be executed\n".encode())
        try:
            data = stdin if isinstance(stdin, bytes) else stdin(process.imported)
            return run_to_end(process, what or argv[0], data, timeout, limit)
        except TimeoutError as error:
            raise ConnectionLostError(
                f"{self.name}: {argv[0]} did not end within {timeout:.0f} s",
                "is its disk busy, or does a mount hang? then repeat the command",
            ) from error
        finally:
            process.close()

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        del window  # a pipe buffers 64 KiB, whatever the window
        try:
            return self._start(argv, env)
        except (FileNotFoundError, PermissionError) as error:
            raise HostError(f"{self.name}: {argv[0]}: {error.strerror}") from error

    def _start(self, argv: Sequence[str], env: Mapping[str, str] | None) -> LocalProcess:
        self._check_platform()
        forks = _forks_of(argv)
        if env is None and forks is not None:
            forks.prepare()  # beside the reading of the modules here
            names = _imported(forks.modules)
            forked = forks.start()
            if forked is not None:
                return LocalProcess(forked, self.name, names)
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(env),
            # Ctrl-C at the operator's terminal must only reach the operator's program.
            start_new_session=True,
        )
        return LocalProcess(child, self.name)

    def run_job(self, argv: Sequence[str], job: Job, *, timeout: float | None, limit: int, what: str) -> Completed:
        return self.run(argv, stdin=job, timeout=timeout, limit=limit, what=what)

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        return remote_call.caller(self, function, timeout)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def shell_line(self, command: str) -> str:
        return command

    def open_shell(self) -> int:
        return run_shell([os.environ.get("SHELL") or "/bin/sh"])


def _forks_of(argv: Sequence[str]) -> LocalForks | None:
    """Return the fork server of a command, or None."""
    if not FORKED:
        return None
    return {tuple(FORKED): FORKS, tuple(FORKED_CLIENTS): CLIENT_FORKS}.get(tuple(argv))


@functools.cache
def _imported(modules: tuple[str, ...]) -> frozenset[str]:
    try:
        return frozenset[str]().union(*map(remote_call.module_names, modules))
    except FileNotFoundError:  # a broken installation: the server cannot import it either
        return frozenset()


def _environment(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return {**os.environ, **env} if env else None
