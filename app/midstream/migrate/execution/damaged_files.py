"""Files of a migration that may be damaged: what is wrong with one, in words; what is read of it nevertheless."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from midstream.errors import MidstreamError
from midstream_engine import records

LONGEST_REQUEST = 64  # bytes of a request that are read
ROLLBACK = "rollback"  # what a request says

Value = TypeVar("Value")


def problem_of(file: Path, check: Callable[[], object]) -> str:
    """What is wrong with a file, in words that follow its name; empty where ``check`` finds nothing."""
    try:
        check()
    except (OSError, records.RecordError, MidstreamError) as error:
        return what_is_wrong(file, error).removeprefix(f"{file.name} ")
    return ""


def what_is_wrong(file: Path, error: Exception) -> str:
    """``plan.json is empty``, ``plan.json is missing``, ``plan.json: epoch: expected an integer, found a string``."""
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
    """Rename what is no regular file, so that one can be written in its place; nothing of it is deleted."""
    if os.path.lexists(file) and not (file.is_file() and not file.is_symlink()):
        file.rename(f"{file}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")


def parsed(file: Path, parse: Callable[[object, str], Value]) -> Value:
    """The value in a JSON file. FileNotFoundError, OSError; RecordError where it is damaged."""
    return parse(records.read_json(str(file)), file.name)


def read_or_none(file: Path, parse: Callable[[object, str], Value]) -> Value | None:
    """The same, None where there is no such file or a damaged one."""
    try:
        return parsed(file, parse)
    except (OSError, records.RecordError):
        return None


def journaled(value: object, parse: Callable[[object, str], Value]) -> Value | None:
    """What the journal's result holds of a file that is gone."""
    try:
        return None if value is None else parse(value, "journal.jsonl")
    except records.RecordError:
        return None


def request(file: Path) -> str:
    """What a person asked for in a file; empty where that cannot be read."""
    try:
        return records.read_bytes(str(file), LONGEST_REQUEST).decode(errors="replace").strip()
    except (OSError, records.RecordError):
        return ""


def check_request(file: Path) -> None:
    """RecordError where a request is none."""
    if request(file) != ROLLBACK:
        raise records.RecordError(f"{file.name} asks for no rollback: it is not obeyed")
