"""The one error of this package."""

from __future__ import annotations

from midstream_engine.errors import EngineError


class DataError(EngineError):
    """The text or its token cache cannot be used. One line with the path."""
