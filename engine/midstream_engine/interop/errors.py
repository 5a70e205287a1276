"""What can go wrong with a conversion."""

from midstream_engine.errors import EngineError


class ConversionError(EngineError):
    """A model cannot be converted; the message is one line that says why."""
