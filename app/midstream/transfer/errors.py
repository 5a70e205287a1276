"""The error of a copy."""

from __future__ import annotations

from midstream.errors import MidstreamError

RESUME_HINT = "run the same copy again to continue"


class TransferError(MidstreamError):
    """Error of a copy that cannot be completed.

    ``path`` names the object if it is the fault of one object.
    """

    def __init__(self, message: str, hint: str = "", path: str = "") -> None:
        super().__init__(message, hint)
        self.path = path


class ChangedOnWayError(TransferError):
    """An object is sound at the source and arrived with another hash."""
