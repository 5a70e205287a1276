"""Bounded pattern search for paths below a directory.

A link to a folder elsewhere is followed, and none below it; one to a folder that is searched anyway is not. What
earlier attempts wrote is left out.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
from typing import Iterator, List, Set, Tuple

MAX_ENTRIES = 50_000  # names looked at
DEEPEST = 8  # folders that ** stands for
GIVEN_UP = "given-up-by-attempt-"  # begins the names of directories with what earlier attempts wrote


class SearchError(ValueError):
    """A pattern cannot be searched for, or the directory has too many entries."""


def search(directory: str, pattern: str) -> List[str]:
    """Return the matching relative paths, sorted; none if the directory is missing.

    ``**`` stands for any number of folders, none of them hidden; ``*``, ``?`` and ``[...]`` are within a name.

    Raises:
        SearchError: The pattern is absolute or has ``..``, or there are too many entries.
        OSError: A directory cannot be read.
    """
    parts = pattern.split("/")
    if pattern.startswith("/") or any(name in ("", ".", "..") for name in parts) or "\0" in pattern:
        raise SearchError("the pattern {!r} is not a path below the directory".format(pattern[:200]))
    search_state = _Search(directory)
    return sorted(set(search_state.run("", parts, 0)))


class _Search:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._root = os.path.realpath(directory)
        self._links: Set[str] = set()  # that are followed
        self._seen = 0

    def run(self, folder: str, parts: List[str], depth: int) -> Iterator[str]:
        head, rest = parts[0], parts[1:]
        if head == "**":
            yield from self.run(folder, rest or ["*"], depth)
            if depth < DEEPEST:
                for name, is_folder in self._names(folder):
                    if is_folder and not name.startswith("."):
                        yield from self.run(posixpath.join(folder, name), parts, depth + 1)
            return
        for name, is_folder in self._names(folder):
            if not fnmatch.fnmatchcase(name, head) or (name.startswith(".") and not head.startswith(".")):
                continue
            path = posixpath.join(folder, name)
            if not rest:
                yield path
            elif is_folder:
                yield from self.run(path, rest, depth)

    def _names(self, folder: str) -> Iterator[Tuple[str, bool]]:
        try:
            with os.scandir(posixpath.join(self._directory, folder)) as entries:
                for entry in entries:
                    if entry.name.startswith(GIVEN_UP):
                        continue  # its checkpoints and metrics are of steps that were given up
                    self._seen += 1
                    if self._seen > MAX_ENTRIES:
                        raise SearchError("{} has more than {} entries".format(self._directory, MAX_ENTRIES))
                    is_folder = entry.is_dir(follow_symlinks=False)
                    yield entry.name, is_folder or (entry.is_symlink() and self._is_followed(entry.path))
        except FileNotFoundError:
            return

    def _is_followed(self, link: str) -> bool:
        """Return whether a link leads to a folder elsewhere, and is below no other link."""
        if any(link.startswith(other + "/") for other in self._links) or not os.path.isdir(link):
            return False
        if _share(os.path.realpath(link), self._root):
            return False
        self._links.add(link)
        return True


def _share(variable: str, other: str) -> bool:
    """Return whether one of two folders is the other, or in it."""
    return os.path.commonpath([variable, other]) in (variable, other)
