"""Metrics in growing files that match a pattern.

Files are followed by identity and offset, across replaced and new files.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from typing import Any, BinaryIO, Callable, Dict, List, Mapping, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_host.driver.checkpoints.search import search
from midstream_host.driver.metrics.parser import Parser
from midstream_host.driver.metrics.rows import Columns, Point, PointMerger, Row, RowsOfPart

MAX_FILES = 128  # the newest; a run of many attempts has a file for each
READ = 4 << 20  # bytes of a file in one poll
BUDGET = 8 << 20  # bytes of all files in one poll: about two seconds of parsing
MAX_READ = 16 << 20  # bytes, where one record is longer than that
MARK = 64  # bytes at a file's beginning and before the offset, by which a replaced file is recognised


@dataclasses.dataclass
class _Followed:
    """Position up to which a file was read."""

    part: int
    device: int = 0
    inode: int = 0
    offset: int = 0
    head: str = ""  # hexadecimal: the first bytes
    tail: str = ""  # the bytes before the offset
    parser: JsonValue = None
    open: Any = None  # the point that may get more values

    @classmethod
    def from_json(cls, value: Any) -> Optional[_Followed]:
        """Decode; None where it has another shape."""
        fields = object_or_empty(value)
        numbers = {name: fields.get(name) for name in ("part", "device", "inode", "offset")}
        texts = {name: fields.get(name) for name in ("head", "tail")}
        if any(type(number) is not int or number < 0 for number in numbers.values()):
            return None
        if any(type(text) is not str for text in texts.values()):
            return None
        others = {name: fields.get(name) for name in ("parser", "open")}
        checked: Dict[str, Any] = {**numbers, **texts, **others}
        return cls(**checked)


class FileReader:
    """Reads the new rows of all files of a run's metrics.

    Args:
        make: Creates the parser of a file.
        directory: Where the run writes.
        pattern: Of the files below it; see `search`.
        columns: How names become columns.
        state: Where to continue: `state` of an earlier reader, None for the beginning.
    """

    def __init__(
        self, make: Callable[[], Parser], directory: str, pattern: str, columns: Columns, state: JsonValue = None
    ) -> None:
        self._make, self._directory, self._pattern, self._columns = make, directory, pattern, columns
        self._files: Dict[str, _Followed] = {}
        self._parts = 0
        given: Mapping[str, object] = object_or_empty(state)
        files: JsonValue = given.get("files")
        for path, value in (object_or_empty(files)).items():
            followed = _Followed.from_json(value)
            if followed is not None:
                self._files[path] = followed
                self._parts = max(self._parts, followed.part)
        parts = given.get("parts")
        if type(parts) is int:
            self._parts = max(self._parts, parts)

    @property
    def state(self) -> Dict[str, JsonValue]:
        """Where this reader is, as JSON: give it to the next one."""
        return {"parts": self._parts, "files": {path: dataclasses.asdict(file) for path, file in self._files.items()}}

    def poll(self) -> List[RowsOfPart]:
        """Return the new rows of each file that has some, or that waits.

        Call it again until there are none.

        The last row of a file is returned once the next poll has found nothing more: values of its step may follow.

        Raises:
            SearchError: The pattern is no relative one, or the directory has too many entries.
            OSError: The directory cannot be read.
        """
        rows: List[RowsOfPart] = []
        paths = self._paths()
        for path, followed in self._renamed(paths):
            rest = PointMerger(followed.open).flush()
            if rest:
                rows.append(RowsOfPart(path, followed.part, self._rows(rest)))
        budget = BUDGET
        for path in paths:
            if budget <= 0:
                break
            before = self._files[path].offset if path in self._files else 0
            try:
                read = self._read(path)
            except FileNotFoundError:
                continue  # deleted between the search and the read; the next poll leaves it out
            except (OSError, records.RecordError) as error:
                part = self._files[path].part if path in self._files else self._parts
                read = RowsOfPart(path, part, [], "it cannot be read: {}".format(error)[:400])
            budget -= max(0, self._files[path].offset - before) if path in self._files else 0
            if read.rows or read.problem:
                rows.append(read)
        return rows

    def _paths(self) -> List[str]:
        """Return known files in the order of their parts, then new ones, oldest first.

        Of them all, only the newest ``MAX_FILES`` are returned.
        """
        ages: Dict[str, Tuple[int, float, str]] = {}
        for path in search(self._directory, self._pattern):
            try:
                changed = os.stat(posixpath.join(self._directory, path)).st_mtime
            except OSError:
                continue
            ages[path] = (self._files[path].part if path in self._files else 1 << 62, changed, path)
        newest = sorted(ages, key=lambda path: ages[path][1])[-MAX_FILES:]
        return sorted(newest, key=ages.__getitem__)

    def _renamed(self, paths: List[str]) -> List[Tuple[str, _Followed]]:
        """Follow files under their present names; return those that were deleted.

        A log that is rotated is renamed: its rows are not read a second time.
        """
        before, self._files = self._files, {}
        by_identity = {(followed.device, followed.inode): path for path, followed in before.items()}
        moved: Dict[str, str] = {}
        for path in paths:
            try:
                status = os.stat(posixpath.join(self._directory, path))
            except OSError:
                continue
            identity = status.st_dev, status.st_ino
            name = by_identity.get(identity)
            if name is not None:  # a file may have two names
                own = before.get(path)
                moved[path] = path if own is not None and (own.device, own.inode) == identity else name
        taken = set(moved.values())
        for path in paths:
            name = moved.get(path, path)
            if name in before and (path in moved or name not in taken):
                self._files[path] = before.pop(name)
        return [(path, followed) for path, followed in before.items() if path not in taken]

    def _read(self, path: str) -> RowsOfPart:
        with records.open_regular(posixpath.join(self._directory, path)) as file:
            followed, parser = self._position(path, file)
            merger = PointMerger(followed.open)
            file.seek(followed.offset)
            data = file.read(READ)
            parsed = parser.parse(data, followed.offset)
            if not parsed.consumed and not parsed.problem and len(data) == READ:
                file.seek(followed.offset)
                data = file.read(MAX_READ)
                parsed = parser.parse(data, followed.offset)
                if not parsed.consumed and len(data) == MAX_READ:
                    parsed = parsed._replace(problem="a record has more than {} bytes".format(MAX_READ))
            points = [done for point in parsed.points for done in merger.add(point)]
            if not parsed.consumed:
                points += merger.flush()
            followed.offset += parsed.consumed
            followed.parser, followed.open = parser.state, merger.state
            followed.tail = _mark(file, max(0, followed.offset - MARK), followed.offset)
            followed.head = _mark(file, 0, min(MARK, followed.offset))
            modified = os.fstat(file.fileno()).st_mtime
        problem = "at byte {}: {}".format(followed.offset, parsed.problem) if parsed.problem else ""
        return RowsOfPart(path, followed.part, self._rows(points), problem, modified)

    def _position(self, path: str, file: BinaryIO) -> Tuple[_Followed, Parser]:
        """Return where to read on, and the parser.

        A file that was replaced or truncated is a new part.
        """
        status = os.fstat(file.fileno())
        parser = self._make()
        followed = self._files.get(path)
        if followed is not None:
            parser.restore(followed.parser)
            same = (followed.device, followed.inode) == (status.st_dev, status.st_ino)
            same = same and status.st_size >= followed.offset
            same = same and _mark(file, 0, min(MARK, followed.offset)) == followed.head
            if same and _mark(file, max(0, followed.offset - MARK), followed.offset) == followed.tail:
                return followed, parser
            file.seek(0)
            if status.st_size and parser.rewritten(file.read(READ)):
                followed.device, followed.inode, followed.offset = status.st_dev, status.st_ino, 0
                return followed, parser
            parser = self._make()
        self._parts += 1
        followed = _Followed(self._parts, status.st_dev, status.st_ino)
        self._files[path] = followed
        return followed, parser

    def _rows(self, points: List[Point]) -> List[Row]:
        return [self._columns.row(point) for point in points]


def _mark(file: BinaryIO, begin: int, end: int) -> str:
    file.seek(begin)
    return file.read(end - begin).hex()
