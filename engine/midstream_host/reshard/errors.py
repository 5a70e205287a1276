"""Error of a checkpoint that cannot be divided."""

from __future__ import annotations


class ReshardError(Exception):
    """Error of a checkpoint that cannot be divided, or of a place that it cannot be written to.

    The message says what is wrong; nothing was changed.
    """
