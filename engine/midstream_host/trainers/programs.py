"""Text of a trainer's programs, of their settings, and of its commands.

Standard library only; runs on the host.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Iterator, List, Sequence, Set

from midstream_core import records

MAX_FILES = 64  # files that are read
MAX_SIZE = 1 << 20  # bytes of each
_PROGRAMS = (".py", ".yaml", ".yml", ".toml")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")


def program_texts(directory: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the texts of files of a directory; those that cannot be read are left out."""
    for name in names[:MAX_FILES]:
        try:
            with records.open_regular(posixpath.join(directory, name)) as file:
                yield file.read(MAX_SIZE).decode(errors="replace")
        except (OSError, records.RecordError):
            continue


def names_in(directory: str, command: Sequence[str], names: Sequence[str]) -> List[str]:
    """Return the wanted names that a run's files or command have, outside of comments.

    Files are those of the directory itself, and those that the command names below it.
    """
    if not names:
        return []
    named = [word for word in command if word.endswith(_PROGRAMS) and records.safe_relative(word)]
    try:
        beside = sorted(name for name in os.listdir(directory) if name.endswith(_PROGRAMS))
    except OSError:
        beside = []
    present: Set[str] = {name for word in command for name in _NAME.findall(word)}
    for text in program_texts(directory, list(dict.fromkeys([*named, *beside]))):
        present.update(_NAME.findall(_COMMENT.sub("", text)))
    return [name for name in names if name in present]
