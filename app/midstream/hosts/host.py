"""Interface of a machine, the same for this machine and for one behind SSH."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ParamSpec, Protocol, TypeVar

from midstream.fleet.fleet import HostConfig
from midstream.hosts.deadline import Deadline

CALL_TIMEOUT = 60.0  # seconds for a command or a call on a host whose caller names none
ANSWER_LIMIT = 2 << 20  # bytes of one answer

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Completed:
    """Exit code and output of a command that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Process(Protocol):
    """A command that runs on ``host`` with open pipes.

    One reader thread and one writer thread may use it concurrently.
    """

    host: str
    stdin: BinaryIO
    stdout: BinaryIO

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        """Limit the reads of ``stdout`` until the next call.

        Reads raise TimeoutError after ``deadline``, and AnswerTooLargeError once stderr has more than ``stderr`` bytes
        (0: no limit; only the tail of stderr is stored).
        """
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code.

        Raises TimeoutError after ``timeout`` seconds, and ConnectionLostError if the channel ends without an exit code.
        """
        ...

    def stderr_text(self) -> str:
        """Return the last 64 KiB that the command has written to stderr so far."""
        ...

    def close(self) -> None:
        """Close the pipes and end the command. Idempotent."""
        ...


class Host(Protocol):
    """A machine.

    All methods are thread-safe; each command has a channel of its own on one connection.

    ``connect`` sets ``root``, the absolute path of midstream's directory on the host, and ``remote_python``, the
    interpreter (3.8 or newer) that runs `midstream_host`; it is empty on a host without one. ``config`` is its entry in
    the fleet file; None for a bucket.
    Methods raise HostError (with a hint) if the host cannot be reached, ConnectionLostError if the connection breaks.
    """

    name: str
    root: str
    remote_python: str

    @property
    def config(self) -> HostConfig | None: ...

    def connect(self) -> None:
        """Connect, check the host's identity and find ``root``.

        Idempotent; reconnects after ConnectionLostError.
        """
        ...

    def with_new_connection(self) -> Host:
        """Return the same host over a further connection, which the caller closes.

        The local host returns itself.
        """
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        """Run a command to its end.

        Args:
            argv: The program and its arguments. No shell expands them.
            stdin: Bytes for its standard input.
            env: Added to the host's environment.
            timeout: Seconds.
            limit: Bytes of stdout that are accepted.
            what: Name of the command in messages; by default ``argv[0]``.

        Raises:
            AnswerTooLargeError: The command wrote more than ``limit`` bytes.
            ConnectionLostError: The command did not end within ``timeout``; it may still be running on the host.
        """
        ...

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        """Start a command with open pipes.

        ``window``: bytes of unread output after which the command blocks.
        """
        ...

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        """Return ``function``, a declared one of `midstream_host`, to run on the host.

        The host's own Python (3.8 or newer, standard library only) runs it, and its answer is checked against the
        function's return annotation: ``host.call(run_state.describe, timeout=30.0)(root=host.root, run_id=run_id)``.

        Raises:
            RemoteError: The function raised, or its answer has another shape.
            ConnectionLostError: No answer within ``timeout`` seconds; the function may have run.
        """
        ...

    def close(self) -> None:
        """Close the connection. Detached processes keep running."""
        ...


class FleetHost(Host, Protocol):
    """A host of the fleet file."""

    @property
    def config(self) -> HostConfig: ...

    def shell_line(self, command: str) -> str:
        """Return a line for a shell on this machine that runs a command there.

        ``command`` is a line of shell. An example: ``ssh lab 'tail -n 20 /x/log'``. Environment variables of the fleet
        file are never part of it: they may be secrets.
        """
        ...

    def open_shell(self) -> int:
        """Run a shell on the host in this terminal, and return its exit code.

        Raises:
            HostError: The host cannot be reached.
        """
        ...
