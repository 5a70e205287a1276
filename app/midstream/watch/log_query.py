"""Search in a log: words that a line must have, and must not have.

Screens and flags read it alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from midstream_host.runs import log_pages

SYNTAX = "words that a line has, a|b: one of both, !word: without it; all in lower case: case is ignored"


@dataclass(frozen=True)
class LogQuery:
    """A search. ``words`` are in every matching line, ``excluded`` in none."""

    words: tuple[str, ...]
    excluded: tuple[str, ...]
    ignore_case: bool

    @classmethod
    def parse(cls, text: str) -> LogQuery:
        """Parse ``word a|b !word``; a search in lower case ignores case."""
        words = text.split()
        return cls(
            tuple(word for word in words if not word.startswith("!")),
            tuple(word[1:] for word in words if word.startswith("!") and len(word) > 1),
            text.islower(),
        )

    @property
    def marked(self) -> list[str]:
        """Texts that a match shows."""
        return [text for word in self.words for text in log_pages.alternatives(word)]

    def matcher(self) -> Callable[[str], bool]:
        """Return a predicate for matching lines, the same as on hosts."""
        return log_pages.matcher(list(self.words), list(self.excluded), self.ignore_case)
