"""Hosts' metrics over the last day, in files of `$MIDSTREAM_STATE/system/`.

A later session begins with these metrics.

One file for each host of a fleet file: a line of JSON, then the numbers. A cache: it may be deleted, and a file that is
partial, damaged or of another version counts as absent. Files that have not been written for a day are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from midstream.state_directory import make_directory, state_directory
from midstream.watch.system_metrics import MAX_ACCELERATORS, METRICS, Key
from midstream.watch.system_series import DAY, TIERS, StoredTier, SystemSeries
from midstream_core.json_types import JsonValue

FORMAT = 1
INTERVAL = 600.0  # seconds in which each host's file is written once
LARGEST = 2 << 20  # bytes of a file that is read; 32 accelerators take less than 1 MB
STOP_TIMEOUT = 10.0  # seconds that the last files may take

_NAMES = {metric.name for metric in METRICS}
_log = logging.getLogger(__name__)


def directory_of(fleet_path: str) -> Path:
    """Return the directory with the files of a fleet file's hosts."""
    path = os.path.abspath(os.path.expanduser(fleet_path))
    return state_directory() / "system" / hashlib.sha256(path.encode()).hexdigest()[:16]


class SeriesFiles:
    """Reader and writer of the files of all hosts, in a thread of its own.

    The files are read once, then written from time to time and at the end.
    """

    def __init__(self, fleet_path: str, system: Mapping[str, SystemSeries]) -> None:
        """Prepare to keep ``system``, the series by host; nothing is read before `start`."""
        self._directory, self._system = directory_of(fleet_path), system
        self._written: dict[str, int] = {}  # host -> version of its series in the file; absent: not read yet
        self.restored = threading.Event()  # all files were read
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="system-files", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is new, and end. Idempotent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)

    def _keep(self) -> None:
        try:
            self._restore()
            pause = INTERVAL / max(1, len(self._system))
            while not self._stopped.is_set():
                for host in self._system:
                    if self._stopped.wait(pause):
                        break
                    self._write(host)
            for host in self._system:
                self._write(host)
        except OSError as error:  # a full disk, or a state directory that cannot be written: the session goes on
            _log.warning("the hosts' metrics are not stored: %s", error)

    def _restore(self) -> None:
        remove_old(self._directory.parent)
        for host, series in self._system.items():
            if self._stopped.is_set():
                return
            tiers = read(self._file(host))
            if tiers is not None:
                series.restore(tiers, time.time())
            self._written[host] = 0
        self.restored.set()

    def _write(self, host: str) -> None:
        series = self._system[host]
        version = series.version
        if version != self._written.get(host, version):  # a file that was not read is not replaced
            write(self._file(host), series.stored())
            self._written[host] = version

    def _file(self, host: str) -> Path:
        return self._directory / quote(host, safe="")


def write(file: Path, tiers: list[StoredTier]) -> None:
    """Replace a host's file."""
    body = b"".join(column.tobytes() for tier in tiers for column in (tier.times, *tier.columns.values()))
    head: dict[str, JsonValue] = {
        "format": FORMAT,
        "byteorder": sys.byteorder,
        "crc32": zlib.crc32(body),
        "tiers": [{"points": len(tier.times), "keys": list(tier.columns)} for tier in tiers],
    }
    make_directory(file.parent)
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}~")  # `quote` leaves no other name with ~ at the end
    temporary.write_bytes(json.dumps(head).encode() + b"\n" + body)
    temporary.replace(file)


def read(file: Path) -> list[StoredTier] | None:
    """Return the tiers of a host's file; None if there is none that can be read."""
    try:
        with file.open("rb") as opened:
            line, _, body = opened.read(LARGEST).partition(b"\n")
        head = cast("dict[str, Any]", json.loads(line))
        if (head["format"], head["byteorder"], head["crc32"]) != (FORMAT, sys.byteorder, zlib.crc32(body)):
            return None
        tiers = list[StoredTier]()
        at = 0
        for (_, capacity), tier in zip(TIERS, head["tiers"], strict=True):
            points, keys = int(tier["points"]), [_key(key) for key in tier["keys"]]
            if not 0 <= points <= 2 * capacity:
                return None
            parts = [array("d"), *(array("f") for _ in keys)]
            for column in parts:
                size = points * column.itemsize
                column.frombytes(body[at : at + size])
                at += size
            if at > len(body):
                return None
            tiers.append(StoredTier(parts[0], dict(zip(keys, parts[1:], strict=True))))
        return tiers
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


def _key(value: Any) -> Key:
    name, index = value
    if name not in _NAMES or type(index) is not int or not -1 <= index < MAX_ACCELERATORS:
        raise ValueError("no series has this name")
    return str(name), index


def remove_old(directory: Path, now: float | None = None) -> None:
    """Remove old files below ``directory``, and what they leave empty.

    Old files have not been written for a day.
    """
    oldest = (time.time() if now is None else now) - DAY
    for folder in [folder for folder in directory.glob("*") if folder.is_dir()]:
        with suppress(OSError):  # another session may remove them at the same time
            for file in folder.iterdir():
                if file.stat().st_mtime < oldest:
                    file.unlink()
            folder.rmdir()  # an error where files are left
