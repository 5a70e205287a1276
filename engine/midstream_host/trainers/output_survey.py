"""Files that a trainer has written: checkpoints and metrics below its directory.

It only reads. Standard library only; runs on the host.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import re
from typing import Dict, Iterator, List, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.declarations import reads
from midstream_host.driver.checkpoints.step_names import step_in
from midstream_host.driver.metrics.rows import LOSS, Columns
from midstream_host.shapes import FileName

MAX_ENTRIES = 20000  # files and directories that are looked at
MAX_DEPTH = 4  # directories below the trainer's
MAX_FILES = 64  # of a kind that are reported
MAX_LINES = 1 << 16  # bytes at the begin of a file of metrics
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".pkl", ".msgpack", ".json")
_NAMED = re.compile(r"ckpt|checkpoint|step|iter|epoch|model|state|save", re.IGNORECASE)
_SKIPPED = re.compile(r"\..*|__pycache__|node_modules|site-packages|s?bin|include|lib(64)?|v?env|wandb|mlruns")
_EVENTS = "events.out.tfevents"


@dataclasses.dataclass(frozen=True)
class MetricsFile:
    """A file with losses by step. ``first``: the number of its first row."""

    path: FileName
    source: str  # jsonl, csv or tensorboard: a source of a run file
    first: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class OutputFiles:
    """Output of a trainer, newest first; paths are relative to its directory.

    ``checkpoints``: files and directories whose names have a step. ``complete``: all entries were looked at.
    """

    checkpoints: List[FileName] = dataclasses.field(default_factory=lambda: [])
    metrics: List[MetricsFile] = dataclasses.field(default_factory=lambda: [])
    complete: bool = True


@reads()
def survey_output(directory: str) -> OutputFiles:
    """Look for checkpoints and metrics below a directory. OSError where it is missing."""
    directory = os.path.realpath(os.path.expanduser(directory))
    os.listdir(directory)
    checkpoints: Dict[str, float] = {}
    metrics: Dict[str, Tuple[float, MetricsFile]] = {}
    looked = 0
    for relative, is_directory, changed in _entries(directory):
        looked += 1
        if looked > MAX_ENTRIES:
            break
        name = posixpath.basename(relative)
        if step_in(name) is not None and _NAMED.search(name) and (is_directory or name.endswith(_SUFFIXES)):
            checkpoints[relative] = changed
        elif not is_directory and not _inside(relative, checkpoints):
            kind = _metrics_of(directory, relative)
            if kind is not None:
                metrics[relative] = (changed, kind)
    newest = sorted(checkpoints, key=lambda path: (checkpoints[path], path), reverse=True)
    outermost = [path for path in newest if not _inside(path, checkpoints)]
    rows = sorted(metrics.values(), key=lambda pair: pair[0], reverse=True)
    return OutputFiles(outermost[:MAX_FILES], [kind for _, kind in rows][:MAX_FILES], looked <= MAX_ENTRIES)


def _inside(path: str, directories: Dict[str, float]) -> bool:
    return any(parent in directories for parent in _parents(path))


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = posixpath.dirname(path)
        yield path


def _entries(directory: str) -> Iterator[Tuple[str, bool, float]]:
    """Yield (relative path, whether it is a directory, time of its change).

    A directory comes before what is in it.
    """
    waiting = [("", 0)]
    while waiting:
        parent, depth = waiting.pop(0)
        try:
            entries = sorted(os.scandir(posixpath.join(directory, parent)), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if _SKIPPED.fullmatch(entry.name) or entry.is_symlink():
                continue
            try:
                is_directory, changed = entry.is_dir(), entry.stat().st_mtime
            except OSError:
                continue
            relative = posixpath.join(parent, entry.name)
            yield relative, is_directory, changed
            if is_directory and depth < MAX_DEPTH:
                waiting.append((relative, depth + 1))


def _metrics_of(directory: str, relative: str) -> Optional[MetricsFile]:
    """Return a file as one of metrics, if its first rows have a loss and a step."""
    if _EVENTS in posixpath.basename(relative):
        return MetricsFile(relative, "tensorboard")
    if not relative.endswith((".jsonl", ".csv")):
        return None
    try:
        with records.open_regular(posixpath.join(directory, relative)) as file:
            lines = file.read(MAX_LINES).decode(errors="replace").splitlines(keepends=True)
    except (OSError, records.RecordError):
        return None
    complete = [line for line in lines if line.endswith("\n")]
    if relative.endswith(".csv"):
        return _csv_of(relative, complete)
    for line in complete:
        try:
            value: JsonValue = json.loads(line)
        except (ValueError, RecursionError):
            continue
        point = Columns().point(value) if isinstance(value, dict) else None
        if point is not None and LOSS in Columns().row(point):
            return MetricsFile(relative, "jsonl", point.step)
    return None


def _csv_of(relative: str, lines: List[str]) -> Optional[MetricsFile]:
    names = [word.strip().strip('"') for word in lines[0].split(",")] if lines else []
    for line in lines[1:]:
        cells = [word.strip() for word in line.split(",")]
        try:
            values = {name: float(cell) for name, cell in zip(names, cells) if cell}
        except ValueError:
            continue
        point = Columns().point(values)
        if point is not None and LOSS in Columns().row(point):
            return MetricsFile(relative, "csv", point.step)
    return None
