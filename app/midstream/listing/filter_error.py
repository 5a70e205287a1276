"""The error of a malformed filter.

Screens that have no filter need no more of the filter language.
"""

from __future__ import annotations

from midstream.errors import UsageError


class FilterError(UsageError):
    """Error: a filter is malformed.

    ``column`` is the place in the text, from 1 on; ``reason`` is the message without it.
    """

    def __init__(self, reason: str, column: int, hint: str = "") -> None:
        super().__init__(f"filter, column {column}: {reason}", hint)
        self.reason, self.column = reason, column
