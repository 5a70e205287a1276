"""The files of a tree, and words to the operator: what the programs of a copy share. It imports little, because every
stream of a copy begins with an interpreter that reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import sys
import threading
from typing import Any, Optional

INCOMING = ".incoming"  # what is on its way; see staging.py
BLOCK = 1 << 20  # bytes read at once
HASHERS = 4


def emit(event: str, **fields: Any) -> None:
    """One line to the operator. Several threads report."""
    line = json.dumps(dict(fields, event=event)).encode() + b"\n"
    with _emitting:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


_emitting = threading.Lock()


def end_with_operator() -> None:
    """End this program when its stdin closes: the operator has gone, or has lost interest. For programs that read
    nothing more. The descriptor is read, because a thread in ``sys.stdin`` would hold up the interpreter's end."""

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def file_sha256(path: str, offset: int = 0, size: Optional[int] = None) -> str:
    """SHA-256 of the file from ``offset``, of ``size`` bytes or to its end. hashlib releases the GIL: threads help."""
    digest = hashlib.sha256()
    view = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        left = size
        while left is None or left > 0:
            count = file.readinto(view if left is None else view[: min(left, BLOCK)])
            if not count:
                break
            digest.update(view[:count])
            left = None if left is None else left - count
    return digest.hexdigest()


def inside(directory: str, path: str) -> str:
    """The place of an object. ValueError where its path would leave the directory, or is not spelled in the one way."""
    first = path.split("/")[0]
    if path != posixpath.normpath(path) or first in ("", "..", ".", INCOMING) or "\0" in path:
        raise ValueError("object path {!r} leaves the directory".format(path))
    return posixpath.join(directory, path)
