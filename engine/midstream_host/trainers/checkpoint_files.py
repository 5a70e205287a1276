"""Files of another trainer's checkpoint.

`bucket.checkpoint_files` is the counterpart for a bucket.
Standard library only; Python 3.8.
"""

from __future__ import annotations

import functools
import json
import os
from typing import BinaryIO, Dict, List, Protocol

from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.levanter_checkpoints import Places

CONFIG_LIMIT = 1 << 20  # bytes of a configuration
STATE_LIMIT = 64 << 20  # bytes of the state of transformers' Trainer, which has all that was logged


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


def text_of(files: CheckpointFiles, path: str, limit: int = CONFIG_LIMIT) -> str:
    """Return the text of a file.

    Raises ValueError where it is larger than ``limit``, and what ``files`` raises.
    """
    with files.open(path) as file:
        return limited(file, path, limit).decode(errors="replace")


def limited(file: BinaryIO, path: str, limit: int) -> bytes:
    """Return the rest of an open file.

    Raises ValueError where it is larger than ``limit``, and OSError.
    """
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError("{} is larger than {} bytes".format(path, limit))
    return data


def object_of(files: CheckpointFiles, path: str, limit: int) -> JsonObject:
    """Return the object of a file of JSON.

    Raises ValueError where it has none, and what ``files`` raises.
    """
    try:
        value: JsonValue = json.loads(text_of(files, path, limit))
    except ValueError as error:
        raise ValueError("{}: not JSON, perhaps cut off ({})".format(path, error)) from None
    if not isinstance(value, dict):
        raise ValueError("{}: not a JSON object".format(path))
    return value


def normal_path(path: str) -> str:
    """Return a path or the URL of a bucket without ``..``."""
    scheme, separator, rest = path.rpartition("://")
    return scheme + separator + os.path.normpath(rest)


def places_of(files: CheckpointFiles) -> Places:
    """Return the functions that read ``files``."""
    return Places(files.names, files.is_file, functools.partial(text_of, files))
