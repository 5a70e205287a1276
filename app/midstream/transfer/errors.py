"""Why a copy did not come to its end."""

from __future__ import annotations

from midstream.errors import MidstreamError


class TransferError(MidstreamError):
    """A copy that cannot be completed. ``path`` names the object, where it is one object's fault."""

    def __init__(self, message: str, hint: str = "", path: str = ""):
        super().__init__(message, hint)
        self.path = path


def shown(path: str) -> str:
    """A path as it may stand in one line for a person."""
    return path if path.isprintable() else repr(path)
