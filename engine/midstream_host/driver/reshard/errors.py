"""Error of a checkpoint that cannot be divided."""

from __future__ import annotations


class ReshardError(Exception):
    """Error of a checkpoint that cannot be divided, or of its output.

    The message says what is wrong; nothing was changed.
    """
