"""The log history in the newest ``trainer_state.json`` of transformers' Trainer."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from typing import Dict, List, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_host.driver.checkpoints.search import search
from midstream_host.driver.metrics.rows import Columns, Point, PointMerger, RowsOfPart

PATTERN = "**/trainer_state.json"
MAX_SIZE = 64 << 20  # bytes
MAX_ROWS = 20_000  # of one poll


class TrainerStateReader:
    """Reads the rows that the newest file has beyond those of the one before it.

    Each checkpoint has the history from the first step on. One that differs in what was read already is a new part: the
    run was continued from an older checkpoint.
    """

    def __init__(self, directory: str, pattern: str, columns: Columns, state: JsonValue = None) -> None:
        """Continue where ``state`` of an earlier reader was; see `FileReader`."""
        self._directory, self._pattern, self._columns = directory, pattern, columns
        given = object_or_empty(state)
        part, count, digest = given.get("part"), given.get("count"), given.get("digest")
        self._part = part if type(part) is int else 0
        self._count = count if type(count) is int and count >= 0 else 0
        self._digest = digest if type(digest) is str else ""
        self._seen: Optional[Tuple[str, int, int]] = None

    @property
    def state(self) -> Dict[str, JsonValue]:
        """Where this reader is, as JSON."""
        return {"part": self._part, "count": self._count, "digest": self._digest}

    def poll(self) -> List[RowsOfPart]:
        """Return the new rows; see `FileReader.poll`.

        A file that is being written is waited for.

        Raises:
            SearchError: The pattern is no relative one, or the directory has too many entries.
            OSError: The directory cannot be read.
        """
        newest = self._newest()
        if newest is None or newest == self._seen:
            return []
        path = newest[0]
        try:
            value: JsonValue = records.read_json(posixpath.join(self._directory, path), MAX_SIZE)
        except FileNotFoundError:
            return []
        except (OSError, records.RecordError) as error:
            return [RowsOfPart(path, self._part, [], str(error)[:400])]
        history: JsonValue = object_or_empty(value).get("log_history")
        if not isinstance(history, list):
            return [RowsOfPart(path, self._part, [], "has no log_history")]
        entries = [entry for entry in history if isinstance(entry, dict)]
        return self._rows(newest, entries)

    def _rows(self, newest: Tuple[str, int, int], entries: List[Dict[str, JsonValue]]) -> List[RowsOfPart]:
        if not self._part or len(entries) < self._count or _digest(entries[: self._count]) != self._digest:
            self._part, self._count = self._part + 1, 0
        fresh = entries[self._count : self._count + MAX_ROWS]
        self._count += len(fresh)
        self._digest = _digest(entries[: self._count])
        if self._count == len(entries):
            self._seen = newest
        merger = PointMerger()
        points: List[Point] = []
        for entry in fresh:
            if "train_runtime" in entry:  # the summary of a finished run: its loss is the mean of all steps
                continue
            point = self._columns.point(entry)
            if point is not None and point.values:
                points += merger.add(point)
        points += merger.flush()
        rows = [self._columns.row(point) for point in points]
        return [RowsOfPart(newest[0], self._part, rows, modified=newest[1] / 1e9)] if rows else []

    def _newest(self) -> Optional[Tuple[str, int, int]]:
        """Path, time and inode of the file that was written last."""
        candidates: List[Tuple[int, str, int]] = []
        for path in search(self._directory, self._pattern):
            try:
                status = os.stat(posixpath.join(self._directory, path))
            except OSError:
                continue
            candidates.append((status.st_mtime_ns, path, status.st_ino))
        if not candidates:
            return None
        time, path, inode = max(candidates)
        return path, time, inode


def _digest(entries: List[Dict[str, JsonValue]]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(json.dumps(entry, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
