"""Exit codes, and errors with a message and a hint for the user."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; `MEANINGS` says what each means."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    INTERRUPTED = 4
    NOT_CERTIFIED = 5
    NOT_RUNNING = 6


# For --help, the man page and docs/reference/cli.md.
MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed; a migration was rolled back, and the run is as it was before",
    Exit.USAGE: "usage: flags, names, fleet file or config",
    Exit.REFUSED: "refused before anything was changed: preflight, a failed check, or no --yes",
    Exit.INTERRUPTED: "interrupted, or the rollback is incomplete: midstream --continue MIGRATION",
    Exit.NOT_CERTIFIED: "not certified; rolled back, the source trains again",
    Exit.NOT_RUNNING: "rolled back, and the run is not running: the message says how to start it",
}


class MidstreamError(Exception):
    """An error shown as one line.

    ``hint`` says what to do; ``code`` is the exit code of the command.
    """

    code = Exit.FAILED

    def __init__(self, message: str, hint: str = "", code: Exit | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(MidstreamError):
    """Invalid flags, names or file content. Nothing was changed."""

    code = Exit.USAGE


class HostError(MidstreamError):
    """A host cannot be reached, does not prove its identity, or refused a request."""


class ConnectionLostError(HostError):
    """The connection to a host was lost. Processes on the host may still run."""


class RemoteError(HostError):
    """A function failed on the host. ``kind`` is the class name of its exception."""

    def __init__(self, message: str, kind: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind


class DamagedError(RemoteError):
    """Records of a run on a host cannot be read.

    Damaged records do not count as absent: the run is not changed before they are repaired.
    """

    code = Exit.REFUSED
