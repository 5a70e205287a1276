"""Files of another trainer's checkpoint.

`bucket.checkpoint_files` is the counterpart for a bucket.
Standard library only; Python 3.8.
"""

from __future__ import annotations

import os
from typing import BinaryIO, Dict, List, Protocol


class CheckpointFiles(Protocol):
    """Files by absolute path. Paths are joined with slashes.

    Methods raise OSError where a file cannot be read; those of a bucket also StoreError.
    """

    def names(self, directory: str) -> List[str]:
        """Return the names in a directory."""
        ...

    def is_file(self, path: str) -> bool:
        """Return whether there is such a file."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; it is seekable."""
        ...

    def sizes(self, directory: str) -> Dict[str, int]:
        """Return the bytes of every file below a directory, by path relative to it."""
        ...


class DiskFiles:
    """Files of this host."""

    def names(self, directory: str) -> List[str]:
        return os.listdir(directory)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def sizes(self, directory: str) -> Dict[str, int]:
        return {
            os.path.relpath(os.path.join(parent, name), directory): os.lstat(os.path.join(parent, name)).st_size
            for parent, _, names in os.walk(directory)
            for name in names
        }
