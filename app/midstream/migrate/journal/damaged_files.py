"""Reads of a migration's files that may be damaged, with descriptions of damage."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from midstream.errors import MidstreamError
from midstream_core import records

MAX_REQUEST_BYTES = 64  # read of a request file
ROLLBACK = "rollback"  # content of a request file
ROLLBACK_AGREED = "rollback without lost attempts"  # the same, also where the target has lost an attempt

Value = TypeVar("Value")


def problem_of(file: Path, check: Callable[[], object]) -> str:
    """Describe a file's damage; empty if ``check`` passes.

    The words follow the file's name.
    """
    try:
        check()
    except (OSError, records.RecordError, MidstreamError) as error:
        return what_is_wrong(file, error).removeprefix(f"{file.name} ")
    return ""


def what_is_wrong(file: Path, error: Exception) -> str:
    """Describe an error of reading ``file``, for example ``plan.json is empty``."""
    if not os.path.lexists(file):
        return f"{file.name} is missing"
    if file.is_dir():
        return f"{file.name} is a directory"
    if file.is_file() and not file.stat().st_size:
        return f"{file.name} is empty"
    if isinstance(error, OSError):
        return f"{file.name} cannot be read: {error.strerror}"
    message = error.message if isinstance(error, MidstreamError) else str(error)
    return f"{file.name} {message.replace(f'{file}: ', '').replace(f'{file} ', '').replace(f'{file.name}: ', '')}"


def set_aside(file: Path) -> None:
    """Rename a path that is no regular file, so that one can be written there."""
    if os.path.lexists(file) and not (file.is_file() and not file.is_symlink()):
        file.rename(f"{file}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")


def parsed(file: Path, parse: Callable[[object, str], Value]) -> Value:
    """Return the value of a JSON file. OSError; RecordError if it is damaged."""
    return parse(records.read_json(str(file)), file.name)


def read_or_none(file: Path, parse: Callable[[object, str], Value]) -> Value | None:
    """Return the value of a JSON file; None if it is missing or damaged."""
    try:
        return parsed(file, parse)
    except (OSError, records.RecordError):
        return None


def journaled(value: object, parse: Callable[[object, str], Value]) -> Value | None:
    """Return the value of a missing file from the journal's result; None if damaged."""
    try:
        return None if value is None else parse(value, "journal.jsonl")
    except records.RecordError:
        return None


def request(file: Path) -> str:
    """Return the user's request in a file; empty if it cannot be read."""
    try:
        return records.read_bytes(str(file), MAX_REQUEST_BYTES).decode(errors="replace").strip()
    except (OSError, records.RecordError):
        return ""


def check_request(file: Path) -> None:
    """Raise RecordError if the file has no valid request."""
    if request(file) not in (ROLLBACK, ROLLBACK_AGREED):
        raise records.RecordError(f"{file.name} has no valid request and is ignored")
