"""Errors of conversions."""

from midstream_core.attempt.errors import EngineError


class ConversionError(EngineError):
    """A model or run cannot be converted; the message is one line with the reason."""


class PickleRejectedError(ConversionError):
    """A pickle is damaged, or contains something that is not allowed."""
