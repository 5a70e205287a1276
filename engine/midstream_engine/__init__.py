"""The engine, which runs on the accelerators and never imports the app."""

from midstream_core import __version__

__all__ = ["__version__"]
