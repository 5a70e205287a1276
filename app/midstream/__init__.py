"""The operator's side of midstream. It never imports jax."""

from midstream_engine import __version__

__all__ = ["__version__"]
