"""Folders and files of the kernel (/proc, /sys), empty where they are missing."""

from __future__ import annotations

import os
from typing import List

MAX_BYTES = 1 << 20


def list_names(path: str) -> List[str]:
    """Return the names in a folder; none where it cannot be read."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def read_text(path: str) -> str:
    """Return the first MiB of a file; an empty text where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return ""
