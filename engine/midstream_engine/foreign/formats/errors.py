"""Error of files whose format is not complete."""

from __future__ import annotations


class FormatError(ValueError):
    """A file is partial, or not of its format; the message says why, without the file's name."""
