"""Metrics in trackio's databases, one for each project (SQLite)."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import posixpath
import sqlite3
import time
import urllib.parse
from typing import Any, Dict, List, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_host.driver.checkpoints.search import search
from midstream_host.driver.metrics.rows import COUNTER, Columns, Point, PointMerger, RowsOfPart

PATTERN = "**/*.db"
MAX_ROWS = 20_000  # of one poll
MAX_DATABASES = 16
TEXT_LIMIT = 1 << 16  # bytes of a row's JSON
QUERY_TIMEOUT = 10.0  # seconds


class TrackioReader:
    """Reader of the new rows of each run in each database; a run is a part.

    Databases are opened for reading only.
    """

    def __init__(self, directory: str, pattern: str, columns: Columns, state: JsonValue = None) -> None:
        """Continue where ``state`` of an earlier reader was; see `FileReader`."""
        self._directory, self._pattern, self._columns = directory, pattern, columns
        given = object_or_empty(state)
        self._last = _numbers(given.get("last"))  # by database: id of the last row
        self._parts = _numbers(given.get("parts"))  # by database, inode and run

    @property
    def state(self) -> Dict[str, JsonValue]:
        """Where this reader is, as JSON."""
        return {"last": self._last, "parts": self._parts}

    def poll(self) -> List[RowsOfPart]:
        """Return the new rows; see `FileReader.poll`.

        Raises:
            SearchError: The pattern is no relative one, or the directory has too many entries.
            OSError: The directory cannot be read.
        """
        rows: List[RowsOfPart] = []
        for path in search(self._directory, self._pattern)[:MAX_DATABASES]:
            try:
                rows += self._read(path)
            except FileNotFoundError:
                continue
            except (sqlite3.Error, OSError, records.RecordError) as error:
                rows.append(RowsOfPart(path, 0, [], "it cannot be read: {}".format(error)[:400]))
        return rows

    def _read(self, path: str) -> List[RowsOfPart]:
        full = posixpath.join(self._directory, path)
        with records.open_regular(full) as file:
            if file.read(16) != b"SQLite format 3\0":
                return []
            key = "{}:{}".format(path, os.fstat(file.fileno()).st_ino)
        rows = _query(full, self._last.get(key, 0))
        by_run: Dict[str, Tuple[PointMerger, List[Point]]] = {}
        for number, run, when, step, text in rows:
            self._last[key] = max(self._last.get(key, 0), number)
            point = self._point(when, step, text)
            if point is not None:
                merger, points = by_run.setdefault(run, (PointMerger(), []))
                points += merger.add(point)
        read_rows_of_runs: List[RowsOfPart] = []
        for run, (merger, points) in by_run.items():
            part = self._parts.setdefault("{}:{}".format(key, run[:200]), len(self._parts) + 1)
            rows_of_run = [self._columns.row(point) for point in points + merger.flush()]
            read_rows_of_runs.append(RowsOfPart(path, part, rows_of_run))
        return read_rows_of_runs

    def _point(self, when: JsonValue, step: Any, text: JsonValue) -> Optional[Point]:
        try:
            value: JsonValue = json.loads(text) if isinstance(text, (str, bytes)) else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        point = self._columns.point({COUNTER: step, **value})
        if point is None or not point.values:
            return None
        return point if point.time is not None else point._replace(time=_seconds(when))


def _query(path: str, after: int) -> List[Tuple[int, str, JsonValue, JsonValue, JsonValue]]:
    """Return the rows of ``metrics`` with a larger id than ``after``.

    Raises sqlite3.Error, also where it takes too long.
    """
    uri = "file:{}?mode=ro".format(urllib.parse.quote(path))
    deadline = time.monotonic() + QUERY_TIMEOUT
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as database:
        database.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
        database.execute("PRAGMA query_only=ON")
        database.execute("PRAGMA trusted_schema=OFF")
        names = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
        if not {"id", "timestamp", "run_name", "step", "metrics"} <= names:
            return []
        run = "COALESCE(run_id, run_name)" if "run_id" in names else "run_name"
        rows = database.execute(
            "SELECT id, CAST({} AS TEXT), timestamp, step, CASE WHEN LENGTH(metrics) <= ? THEN metrics END "
            "FROM metrics WHERE id > ? ORDER BY id LIMIT ?".format(run),
            (TEXT_LIMIT, after, MAX_ROWS),
        )
        return [(number, str(run), *rest) for number, run, *rest in rows if type(number) is int]


def _seconds(when: JsonValue) -> Optional[float]:
    """Seconds of a time in ISO 8601; None where it is none."""
    if not isinstance(when, str):
        return None
    try:
        moment_read = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment_read if moment_read.tzinfo else moment_read.replace(tzinfo=datetime.timezone.utc)).timestamp()


def _numbers(value: JsonValue) -> Dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {key: number for key, number in value.items() if type(number) is int and number >= 0}
