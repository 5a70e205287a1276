"""One file (or dataset) of text, as it was when it was listed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """``path``: an absolute local path or a url. ``name`` does not depend on the machine where that can be avoided."""

    path: str
    name: str
    size: int  # bytes as stored; -1 where the server does not say
    version: str  # changes with the content: modification time, ETag, generation, fingerprint
    rows: int | None = None  # of a dataset that is read by row

    @property
    def local(self) -> bool:
        return "://" not in self.path
