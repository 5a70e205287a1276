"""Errors of a host's operating system in plain words, with what to do."""

from __future__ import annotations

import errno
import re

_REPORTED = re.compile(r"\[Errno (?P<number>\d+)\] (?P<what>[^:]+)(?:: '(?P<path>[^']+)')?$")
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, 69, 122)  # the last two: EDQUOT of macOS and of Linux


def plain_words(host: str, message: str) -> tuple[str, str]:
    """Return a host's message and its hint.

    The message stays as it is, without a hint, where it is no error of the system. ``[Errno 30] Read-only file system:
    '/x'`` becomes ``/x: Read-only file system``.
    """
    reported = _REPORTED.match(message)
    if reported is None:
        return message, ""
    number = int(reported["number"])
    hint = f"change its owner or mode on {host}, or root: in the fleet file" if number in _UNWRITABLE else ""
    if number in _FULL:
        hint = f"free space on {host}, or another root: in the fleet file"
    return (f"{reported['path']}: {reported['what']}" if reported["path"] else reported["what"]), hint
