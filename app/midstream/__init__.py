"""The operator program of midstream. It never imports jax."""

from midstream_engine import __version__

__all__ = ["__version__"]
