"""The record ``import.jsonl`` of an import's complete arrays.

A killed import continues with it.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from midstream_core.records import canonical_json

RECORD = "import.jsonl"


def resume(directory: str, source: object) -> dict[str, list[dict[str, Any]]]:
    """Return the complete arrays' objects; empty a directory of another ``source``.

    ``source``: any JSON that identifies the state of the source.
    """
    first = json.loads(canonical_json({"source": source}))
    path = os.path.join(directory, RECORD)
    done: dict[str, list[dict[str, Any]]] = {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except (FileNotFoundError, ValueError):
        lines = []
    if lines and lines[0] == first:
        for line in lines[1:]:
            sizes = [(os.path.join(directory, entry["path"]), entry["size"]) for entry in line["objects"]]
            if all(os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes):
                done[line["array"]] = line["objects"]
        _remove_others(directory, {entry["path"] for entries in done.values() for entry in entries} | {RECORD})
        return done
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    note(directory, [first])
    return done


def note(directory: str, lines: list[Any]) -> None:
    """Append to the record and sync it."""
    with open(os.path.join(directory, RECORD), "ab") as file:
        file.writelines(canonical_json(line) + b"\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def remove(directory: str) -> None:
    """Delete the record: the import is complete."""
    os.unlink(os.path.join(directory, RECORD))


def _remove_others(directory: str, kept: set[str]) -> None:
    """Delete incomplete files."""
    for parent, _, files in os.walk(directory):
        for name in files:
            path = os.path.join(parent, name)
            if os.path.relpath(path, directory) not in kept:
                os.unlink(path)
