"""One file or dataset of text, as it was listed."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceFile:
    """One listed file.

    ``path``: absolute local path or URL. ``name`` is the same on every machine if possible.
    """

    path: str
    name: str
    size: int  # stored bytes; -1 if the server does not report it
    version: str  # changes with the content: modification time, ETag, generation, fingerprint
    rows: int | None = None  # of a dataset that is read by row

    @property
    def local(self) -> bool:
        """Whether it is a local file."""
        return "://" not in self.path


def listed_version(status: os.stat_result) -> tuple[int, str]:
    """Return size and version of a local file."""
    return status.st_size, str(status.st_mtime_ns)
