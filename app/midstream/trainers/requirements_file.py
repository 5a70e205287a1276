"""Requirements of pip as one text: files that they include are taken in.

Hosts get the text alone, so a line that names a file or a directory of this machine is refused.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from midstream.errors import UsageError

MAX_FILES = 64
_OPTION = re.compile(r"(-[a-zA-Z]|--[a-z-]+)(?:\s*=\s*|\s+|(?<=^-[a-zA-Z]))(\S.*)$")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_INCLUDES = ("-r", "--requirement")
_CONSTRAINTS = ("-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_LINKS = ("-f", "--find-links")
_REMOTE = re.compile(r"(?:git|hg|svn|bzr)\+(?:https?|ssh|git)://|https?://")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^]]*\])?\s*@\s*(\S+)")  # name @ address
_ARCHIVE = re.compile(r"\.(?:whl|tar\.gz|tgz|tar\.bz2|zip)$")


def with_included(name: str, text: str, read: Callable[[str], str]) -> str:
    """Return requirements with the text of each file that they include in its place.

    Args:
        name: The file, as the run file names it.
        text: Its content.
        read: Reads a file that is named in the same way.

    Raises:
        UsageError: A line names constraints or a path, or files include each other.
    """
    if not any(_refers(line) for _, line in _lines(text)):
        return text
    return "\n".join(_expanded(name, text, read, (name,))) + "\n"


def _expanded(name: str, text: str, read: Callable[[str], str], including: tuple[str, ...]) -> Iterator[str]:
    for number, line in _lines(text):
        option, value = _option(line)
        where = f"{name}, line {number}"
        if option in _INCLUDES:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
            if other in including or len(including) >= MAX_FILES:
                raise UsageError(f"{where}: {value} includes itself")
            yield from _expanded(other, read(other), read, (*including, other))
        elif option in _CONSTRAINTS:
            raise UsageError(
                f"{where}: constraints ({value}) do not travel",
                f"uv pip compile {name} -o requirements.lock.txt, or pip freeze, and name that file",
            )
        else:
            _refuse_path(where, option, value or line)
            yield line


def _refers(line: str) -> bool:
    """Return whether a line names something beside the requirements' file."""
    option, value = _option(line)
    return option in (*_INCLUDES, *_CONSTRAINTS, *_EDITABLE, *_LINKS) or _is_path(value if option else line)


def _refuse_path(where: str, option: str, value: str) -> None:
    if option in _LINKS and not _REMOTE.match(value):
        raise UsageError(
            f"{where}: {value} is a directory of this machine", "wheelhouse: of the host in the fleet file"
        )
    if (option in _EDITABLE and not _REMOTE.match(value)) or (not option and _is_path(value)):
        raise UsageError(
            f"{where}: {value} is a path, which the hosts do not have",
            "files: in the run file takes its code along, environment: {variables: {PYTHONPATH: DIR}} finds it; or "
            "name its release",
        )


def _is_path(value: str) -> bool:
    """Return whether a requirement is a file or a directory, by pip's rules."""
    named = _NAMED.match(value)
    place = named.group(1) if named else value.split(";")[0].strip()
    if place.startswith("-") or _REMOTE.match(place):
        return False
    return place.startswith((".", "/", "~", "file:")) or "/" in place or bool(_ARCHIVE.search(place))


def _option(line: str) -> tuple[str, str]:
    """Return a line's option and its value; empty texts for a requirement."""
    matched = _OPTION.match(line) if line.startswith("-") else None
    return (matched.group(1), matched.group(2).strip().strip("\"'")) if matched else ("", "")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbers and lines without comments.

    A line that ends in a backslash has the next one.
    """
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        joined += line
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined = joined[:-1]
            continue
        complete = _COMMENT.sub("", joined).strip()
        if complete:
            yield first, complete
        joined, first = "", 0
