"""Why a copy did not come to its end."""

from __future__ import annotations

from midstream.errors import Exit, MidstreamError


class TransferError(MidstreamError):
    """A copy that cannot be completed. ``path`` names the object, where it is one object's fault."""

    def __init__(self, message: str, fix: str = "", path: str = ""):
        super().__init__(message, fix)
        self.path = path


class TransferCancelled(TransferError):
    """The copy was cancelled. What was verified stays, and is not sent again."""

    code = Exit.INTERRUPTED
