"""This machine as a host."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

from midstream.errors import HostError
from midstream.fleet.config import HostConfig
from midstream.hosts import far
from midstream.hosts.base import Completed, Process
from midstream.hosts.stderr import StderrTail

GRACE = 2.0  # seconds that a program may take to end once its stdin is closed


class LocalProcess:
    """A child with its pipes open."""

    def __init__(self, child: subprocess.Popen[bytes]):
        self._child = child
        self.stdin = cast(BinaryIO, child.stdin)
        self.stdout = cast(BinaryIO, child.stdout)
        stderr = cast(io.BufferedReader, child.stderr)
        self._stderr = StderrTail(lambda: stderr.read1(8192), "local-stderr")

    def wait(self, timeout: float | None = None) -> int:
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"pid {self._child.pid} still runs after {timeout} s") from error
        self._stderr.join(1.0)
        return code

    def stderr_text(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        if self._child.poll() is None:
            # Not the buffered stream: what it holds may never be read, and flushing it would wait for ever.
            cast(io.BufferedWriter, self.stdin).raw.close()
            try:
                self._child.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()
        self._stderr.join(1.0)
        with contextlib.suppress(OSError, ValueError):  # closed above, or its reader is gone
            self.stdin.close()
        self.stdout.close()
        cast(io.BufferedReader, self._child.stderr).close()


class LocalMachine:
    """The Host of ``type: local``: children of this process."""

    def __init__(self, name: str, config: HostConfig):
        self.name = name
        self.config = config
        self.root = os.path.abspath(os.path.expanduser(config.root))
        self.far_python = sys.executable

    def connect(self) -> None:
        """Nothing to do: this machine is here."""

    def dial(self) -> LocalMachine:
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Completed:
        try:
            done = subprocess.run(list(argv), input=stdin, env=_environment(env), timeout=timeout, capture_output=True)
        except FileNotFoundError:
            return Completed(127, b"", f"{argv[0]}: command not found\n".encode())
        except PermissionError:
            return Completed(126, b"", f"{argv[0]}: cannot be executed\n".encode())
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{self.name}: {argv[0]} did not end within {timeout:.0f} s") from error
        return Completed(done.returncode, done.stdout, done.stderr)

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        # A pipe holds 64 KiB, whatever is asked for.
        try:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(env),
                # Ctrl-C at the operator's terminal is for the operator's program alone.
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise HostError(f"{self.name}: {argv[0]}: {error.strerror}") from error
        return LocalProcess(child)

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        return far.call_function(self, self.far_python, function, arguments, timeout)

    def close(self) -> None:
        """Nothing to drop."""


def _environment(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return {**os.environ, **env} if env else None
