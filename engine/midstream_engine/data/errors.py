"""The errors of this package."""

from __future__ import annotations

from midstream_core.attempt.errors import EngineError


class DataError(EngineError):
    """Error of text or its token cache, which cannot be used.

    The message is one line with the path.
    """


class SourceNotFoundError(DataError):
    """A server or a bucket has no object of that name."""
