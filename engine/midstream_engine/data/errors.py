"""The errors of this package."""

from __future__ import annotations

from midstream_engine.errors import EngineError


class DataError(EngineError):
    """The text or its token cache cannot be used. One line with the path."""


class NotThere(DataError):
    """A server or a bucket has nothing under that name."""
