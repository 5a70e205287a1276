"""The files of one checkpoint, as a rule looks at them.

Reads only, and a bounded part of each file.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from typing import Any, Callable, Dict, Iterator, List, Match, Optional, Pattern, Tuple, cast

from midstream_core import records
from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_core.safetensors_header import check_size
from midstream_core.torch_archive import TorchArchive
from midstream_host.driver.checkpoints.checkpoint import IncompleteError

MAX_FILES = 100_000  # of a checkpoint: a file for each chunk of each array is normal for zarr
TEXT_LIMIT = 64 << 20  # bytes of a JSON file: the log history of a long run has some
_PARTIAL = re.compile(r"\.(?:tmp|part|partial|incomplete)(?:[-.]|$)|\.tmp-|^\.~|\.lock$")


class CheckpointTree:
    """A checkpoint's files by their paths in it; that of a single file is ``""``."""

    def __init__(self, path: str) -> None:
        """List the files.

        Raises:
            IncompleteError: The checkpoint has links, devices or too many files.
            OSError: A file cannot be read; FileNotFoundError where it is deleted in the same time.
        """
        self.path = path
        self.name = posixpath.basename(path)
        self.modified = 0.0
        self.sizes: Dict[str, int] = {}
        self._marks: List[Tuple[str, int, int]] = []
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            self._walk("", 0)
        elif stat.S_ISLNK(status.st_mode):
            raise IncompleteError(
                "it is a link to {}, and only files are copied (hint: checkpoints: {{directory: ...}} may name the "
                "folder that it leads to)".format(ascii(os.readlink(path))[:200])
            )
        else:
            self._add("", status)

    @property
    def signature(self) -> Tuple[Tuple[str, int, int], ...]:
        """Path, size and time of each file: equal where nothing was written."""
        return tuple(sorted(self._marks))

    def has_changed(self) -> bool:
        """Return whether a file was written, added or removed since the tree was listed."""
        try:
            return CheckpointTree(self.path).signature != self.signature
        except (OSError, IncompleteError):
            return True

    def match(self, pattern: Pattern[str]) -> Iterator[Match[str]]:
        """Yield the matches of the complete paths of files, in order of their names."""
        for path in sorted(self.sizes):
            match = pattern.fullmatch(path)
            if match:
                yield match

    def has(self, path: str) -> bool:
        """Return whether there is a file of that path."""
        return path in self.sizes

    def below(self, folder: str) -> Dict[str, int]:
        """Sizes of the files below a folder, by their paths in it."""
        prefix = folder + "/"
        return {path[len(prefix) :]: size for path, size in self.sizes.items() if path.startswith(prefix)}

    def full(self, path: str) -> str:
        """Path of a file on this host."""
        return posixpath.join(self.path, path) if path else self.path

    def require(self, path: str, what: str = "") -> None:
        """Raise IncompleteError unless there is a file of that path that is not empty."""
        if path not in self.sizes:
            raise IncompleteError("{} is missing{}".format(path, ": " + what if what else ""))
        if not self.sizes[path]:
            raise IncompleteError("{} is empty".format(path or self.name))

    def text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        """Text of a file. Raises IncompleteError where it is missing or too large."""
        self.require(path)
        try:
            return records.read_bytes(self.full(path), limit).decode("utf-8", "replace")
        except records.RecordError as error:
            raise IncompleteError("{}: {}".format(path, str(error).rpartition(": ")[2])) from None

    def json(self, path: str) -> Dict[str, Any]:
        """Return the JSON object of a file.

        Raises IncompleteError where it is missing, partial or another value.
        """
        text = self.text(path)
        try:
            value: JsonValue = records.parse_json(text, path)
        except records.RecordError:
            raise IncompleteError("{} is partial: it is not JSON".format(path)) from None
        if not isinstance(value, dict):
            raise IncompleteError("{} is not a JSON object".format(path))
        return value

    def archive(self, path: str) -> TorchArchive:
        """Open a file of torch. Raises IncompleteError where it is missing or partial."""
        self.require(path)
        try:
            return TorchArchive(self.full(path))
        except (FormatError, records.RecordError) as error:
            raise IncompleteError("{} {}".format(path or self.name, error)) from None

    def torch_value(self, path: str) -> Dict[JsonValue, JsonValue]:
        """The dict that a file of torch has, without tensors. Raises IncompleteError."""
        with self.archive(path) as archive:
            value = self.checked(path, archive.load)
        if not isinstance(value, dict):
            raise IncompleteError("{} has no dict".format(path or self.name))
        return cast("Dict[JsonValue, JsonValue]", value)

    def check_file(self, path: str) -> None:
        """Raise IncompleteError if a torch or safetensors file is missing or partial."""
        self.require(path)
        if path.endswith(".safetensors") or (not path and self.name.endswith(".safetensors")):
            self.checked(path, lambda: _check_safetensors(self.full(path)))
        else:
            self.archive(path).close()

    def checked(self, path: str, read: Callable[[], object]) -> Any:
        """Return what ``read`` returns; its FormatError as IncompleteError."""
        try:
            return read()
        except (FormatError, records.RecordError) as error:
            raise IncompleteError("{} {}".format(path or self.name, error)) from None

    def refuse_partial(self) -> None:
        """Raise IncompleteError for a file whose name says that it is still being written."""
        for path in sorted(self.sizes):
            if _PARTIAL.search(posixpath.basename(path)):
                raise IncompleteError(
                    "{} is there: the checkpoint is being written, or its writer was ended".format(path)
                )

    def _walk(self, folder: str, depth: int) -> None:
        if depth > 16:
            raise IncompleteError("its folders are nested too deeply")
        with os.scandir(posixpath.join(self.path, folder)) as entries:
            for entry in entries:
                path = posixpath.join(folder, entry.name)
                if entry.is_symlink():
                    raise IncompleteError("{} is a link, and only files are copied".format(path))
                if entry.is_dir(follow_symlinks=False):
                    self._walk(path, depth + 1)
                else:
                    self._add(path, entry.stat(follow_symlinks=False))
                if len(self.sizes) > MAX_FILES:
                    raise IncompleteError("has more than {} files".format(MAX_FILES))

    def _add(self, path: str, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise IncompleteError("{} is no regular file".format(path or self.name))
        self.sizes[path] = status.st_size
        self.modified = max(self.modified, status.st_mtime)
        self._marks.append((path, status.st_size, status.st_mtime_ns))


def number_in(name: str, pattern: Pattern[str]) -> Optional[int]:
    """Return the number that a name has where ``pattern`` has its group.

    None for a name without a number, or with one of many digits.
    """
    match = pattern.search(name)
    return int(match.group(1)) if match and len(match.group(1)) <= 18 else None


def _check_safetensors(path: str) -> None:
    """Compare a file's size with its header. Raises FormatError, OSError."""
    with records.open_regular(path) as file:
        try:
            check_size(file, os.fstat(file.fileno()).st_size)
        except ValueError as error:
            raise FormatError(str(error)) from None
