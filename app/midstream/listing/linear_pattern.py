"""Regular expressions, searched by RE2.

The time of a search is proportional to the text's length. Python's ``re`` takes exponential time for some patterns
(``(a+)+$``), which would stop the screen while the user types.
Back references and look-around, which need backtracking, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAX_PATTERNS = 64  # compiled ones that are kept


class PatternError(ValueError):
    """Error: a pattern is malformed.

    ``position`` is the index at which the part begins that is wrong.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@lru_cache(MAX_PATTERNS)
def _compiled(pattern: str) -> Any:
    import re2  # 24 ms, which the first screen does without

    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False  # they are raised
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason, _, rejected = error.args[0].decode(errors="replace").partition(": ")
        raise PatternError(f"{reason}: {rejected}" if rejected else reason, max(0, pattern.find(rejected))) from None


@dataclass(frozen=True)
class LinearPattern:
    """A pattern that ignores case. Raises PatternError."""

    pattern: str

    def __post_init__(self) -> None:
        _compiled(self.pattern)

    def search(self, text: str) -> bool:
        """Return True if the pattern occurs in ``text``."""
        return _compiled(self.pattern).search(text) is not None
