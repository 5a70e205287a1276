"""What midstream asks of a machine: five verbs, the same for this machine and for one behind SSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from midstream.hosts.deadline import Deadline

ANSWER_LIMIT = 2 << 20  # bytes of one answer


@dataclass(frozen=True)
class Completed:
    """A command that ran to its end."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Process(Protocol):
    """A command that runs on ``host`` with its pipes open. One reader and one writer thread may use it at once."""

    host: str
    stdin: BinaryIO
    stdout: BinaryIO

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        """Until the next call, reads of ``stdout`` raise TimeoutError after ``deadline``, and AnswerTooLarge once more
        than ``stderr`` bytes came on stderr (0: no limit; only the end of it is kept)."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. TimeoutError after ``timeout`` seconds; LostContact where the channel ends without one."""
        ...

    def stderr_text(self) -> str:
        """What it has written to stderr so far (the last 64 KiB)."""
        ...

    def close(self) -> None:
        """Close the pipes and end the command. Idempotent."""
        ...


class Host(Protocol):
    """A machine. Verbs may be used from several threads; each uses a channel of its own on one connection.

    ``root`` is the absolute path of midstream's directory there, ``far_python`` the interpreter (3.8 or newer) that our
    own functions run in, empty where there is none; both are known after ``connect``.
    Errors: HostError (with a line that mends it) on first contact, LostContact when a live connection dies.
    """

    name: str
    root: str
    far_python: str

    def connect(self) -> None:
        """Reach the host, check who it is, find ``root``. Idempotent; reconnects after LostContact."""
        ...

    def dial(self) -> Host:
        """The same machine over a further connection of its own, which whoever asks for it closes. This machine needs
        none and gives itself."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        """Run a command to its end. ``argv`` reaches the program as it stands: nothing is ever expanded. AnswerTooLarge
        past ``limit`` bytes of stdout; ``what`` is the command's name in messages. LostContact
        where it does not end within ``timeout`` seconds: it may still be running there."""
        ...

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        """Start a command and keep its pipes. ``window``: bytes of its output that may be on their way unread; past
        them it has to wait."""
        ...

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        """Run ``midstream.remote.<module>.<function>`` on the host with the host's own Python (>= 3.8, standard
        library only) and return its JSON-able result: ``host.call("runs.run_state.claim_attempt", root=...,
        run_id=...)``.
        RemoteError where the function raised."""
        ...

    def close(self) -> None:
        """Drop the connection. What was started detached goes on."""
        ...
