"""File of the rows that a process of a standby attempt has replayed.

A standby may be started a second time, as a requeued job is, while its first process is suspended. Each has a file of
its own: ``replay.jsonl``, ``replay-2.jsonl``, ... The newest counts. Standard library only.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Tuple

from midstream_core.records import AttemptPaths

_FILE = re.compile(r"replay-([1-9][0-9]{0,8})\.jsonl")


def create(files: AttemptPaths) -> str:
    """Create the file of a process that starts, and return its path."""
    number = newest(files)[0]
    while True:
        number += 1
        path = _path(files, number)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            return path
        except FileExistsError:  # another process is starting too
            continue


def newest(files: AttemptPaths) -> Tuple[int, str]:
    """Return number and path of the newest process's file.

    Number 0 and the first one's path without any.
    """
    try:
        names = os.listdir(files.dir)
    except FileNotFoundError:
        names = []
    numbers = [int(match.group(1)) for match in map(_FILE.fullmatch, names) if match]
    if posixpath.basename(files.replay) in names:
        numbers.append(1)
    number = max(numbers, default=0)
    return number, _path(files, max(number, 1))


def _path(files: AttemptPaths, number: int) -> str:
    return files.replay if number == 1 else posixpath.join(files.dir, "replay-{}.jsonl".format(number))
