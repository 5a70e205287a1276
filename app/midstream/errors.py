"""Exit codes, and the errors that reach a person: what is wrong, and what to do about it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line. docs/cli.md lists them too."""

    DONE = 0
    FAILED = 1  # failed; a migration was rolled back
    USAGE = 2  # flags, fleet file, config or names
    REFUSED = 3  # preflight refused; nothing was changed
    INTERRUPTED = 4  # interrupted, or the rollback is incomplete: can be continued
    NOT_CERTIFIED = 5  # the certificate failed; rolled back
    NOT_RUNNING = 6  # rolled back, and the run does not run: its process or its host went by itself


class MidstreamError(Exception):
    """One line for a person. ``fix`` is the line that mends it; ``code`` the exit code of a command that ends here."""

    code = Exit.FAILED

    def __init__(self, message: str, hint: str = "", code: Exit | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(MidstreamError):
    """Flags, names or a file's content are wrong. Nothing was touched."""

    code = Exit.USAGE


class HostError(MidstreamError):
    """A host cannot be reached, does not prove its identity, or refused what was asked of it."""


class LostContact(HostError):
    """The connection is gone. What runs on the host is not known to have stopped."""


class RemoteError(HostError):
    """A function failed on the far side. ``kind`` is the far exception's class name."""

    def __init__(self, message: str, kind: str = "", hint: str = ""):
        super().__init__(message, hint)
        self.kind = kind


class DamagedError(RemoteError):
    """Records of a run on a host cannot be read. They are not taken for absent: nobody acts on the run before they are
    repaired."""

    code = Exit.REFUSED
