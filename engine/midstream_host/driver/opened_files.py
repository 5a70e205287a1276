"""Files of a checkpoint that a process of this host opens, by inotify.

The kernel reports each opening, on every kind of file system, also one that is too short for a look at ``/proc``. No
process is named: what this process opens itself is left out by reading the reports before and after it.
"""

from __future__ import annotations

import ctypes
import os
import posixpath
import struct
from typing import Dict, List, Set

OPENED, LOST, IGNORED = 0x20, 0x4000, 0x8000  # IN_OPEN, IN_Q_OVERFLOW, IN_IGNORED
IS_DIRECTORY = 0x40000000
_EVENT = struct.Struct("iIII")
READ = 1 << 16
MAX_DIRECTORIES = 2048  # a user may have 8192 watches


class OpenedFiles:
    """Watch of one checkpoint's files, opened by their path below ``directory``."""

    def __init__(self, directory: str, files: List[str]) -> None:
        """Begin to watch ``files``, relative to ``directory``.

        Nothing is raised: see `problem`.
        """
        self.files = set(files)
        self.opened: Set[str] = set()
        self.problem = ""  # why openings cannot be seen, or may have been missed
        self._watched: Dict[int, str] = {}
        self._descriptor = -1
        libc = ctypes.CDLL(None, use_errno=True)
        parents = sorted({posixpath.dirname(path) for path in files})
        if len(parents) > MAX_DIRECTORIES:
            self.problem = "its files are in {} directories".format(len(parents))
            return
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            self.problem = "inotify: {}".format(os.strerror(ctypes.get_errno()))
            return
        for parent in parents:
            path = os.fsencode(posixpath.join(directory, parent))
            watched = libc.inotify_add_watch(self._descriptor, path, OPENED)
            if watched < 0:
                self.problem = "inotify: {}".format(os.strerror(ctypes.get_errno()))
                self.close()
                return
            self._watched[watched] = parent

    def look(self, *, own: bool = False) -> None:
        """Take the reports.

        ``own``: the reports are of this process's own reading, and do not count.
        """
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, READ)
            except BlockingIOError:
                return
            except OSError as error:
                self.problem = "inotify: {}".format(error.strerror)
                return
            opened = self._opened_in(data)
            if not own:
                self.opened |= opened
            elif opened:
                self.problem = "the driver has read it at the same time"

    def _opened_in(self, data: bytes) -> Set[str]:
        paths: Set[str] = set()
        at = 0
        while at < len(data):
            watched, mask, _, length = _EVENT.unpack_from(data, at)
            name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            if mask & LOST:
                self.problem = "inotify: reports were lost"
            elif mask & OPENED and not mask & IS_DIRECTORY and watched in self._watched:
                path = posixpath.join(self._watched[watched], name)
                if path in self.files:
                    paths.add(path)
        return paths

    def close(self) -> None:
        """End the watch."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
