"""Error of files whose format is not complete."""

from __future__ import annotations


class FormatError(ValueError):
    """Error of a file that is partial or not of its format.

    The message says why, without the file's name.
    """
