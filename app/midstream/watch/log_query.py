"""Search in a log: words that a line must have, and must not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from midstream_host.runs import log_pages


@dataclass(frozen=True)
class LogQuery:
    """A search. ``words`` are in every matching line, ``excluded`` in none."""

    words: tuple[str, ...]
    excluded: tuple[str, ...]
    ignore_case: bool

    @classmethod
    def parse(cls, text: str) -> LogQuery:
        """Parse ``word !word``; a search in lower case ignores case."""
        words = text.split()
        return cls(
            tuple(word for word in words if not word.startswith("!")),
            tuple(word[1:] for word in words if word.startswith("!") and len(word) > 1),
            text.islower(),
        )

    def matcher(self) -> Callable[[str], bool]:
        """Return a predicate for matching lines, the same as on hosts."""
        return log_pages.matcher(list(self.words), list(self.excluded), self.ignore_case)
