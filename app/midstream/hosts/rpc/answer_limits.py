"""Limits on what a host may answer: bytes and values of an answer, length and time of a line.

All of it is read by a process that has other work to do: past a limit the command is closed, and one line says which
host answered what.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from midstream.errors import HostError, LostContact
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import ANSWER_LIMIT, Completed, Process
from midstream_engine import records

PAGE_LIMIT = 8 << 20  # of an answer with part of a file: 1 MiB of it, each byte up to six in JSON
MANIFEST_LIMIT = 16 << 20  # of one with a manifest, or a line for each object: 70B parameters have 24,000 objects
LINE_LIMIT = 8 << 20  # of one line of a program
PREAMBLE_LIMIT = 256 << 10  # of what a login shell prints before a command begins
STDERR_LIMIT = 4 << 20  # of what a command writes to stderr, of which the end is kept
MOST_VALUES = 500_000  # values of an answer: an empty list takes 3 bytes of JSON and 64 of memory
LINE_TIMEOUT = 60.0  # seconds from a line's first byte to its last
CHUNK = 1 << 16
FEED_TIMEOUT = 15.0  # seconds until the thread that writes stdin has seen that the command ended

FORCED = "a forced command (command= in authorized_keys), or a login script that prints, is the usual cause"

# What is larger than ANSWER_LIMIT by its nature.
_LIMITS = {
    **dict.fromkeys(
        (
            "runs.run_state.read_lines",
            "runs.run_state.describe",
            "copy.history.describe",
            "copy.history.digests",
            "copy.history.sizes",
        ),
        PAGE_LIMIT,
    ),
    **dict.fromkeys(
        (
            "runs.run_state.read_text",
            "runs.run_state.metrics",
            "runs.standby_state.rows",
            "runs.standby_state.newest_state",
            "copy.growing_checkpoint.rest",
            "verify.tree.manifest_value",
            "verify.objects.describe",
            "verify.objects.missing",
            "verify.objects.digests",
            "gcs.tree.describe",
            "gcs.tree.missing",
            "gcs.tree.digests",
        ),
        MANIFEST_LIMIT,
    ),
}


class AnswerTooLarge(HostError):
    """A host answered more than is read of such an answer. The command was closed."""


def answer_limit(function: str) -> int:
    """Bytes that a function of ``midstream.remote`` may answer."""
    return _LIMITS.get(function, ANSWER_LIMIT)


def too_large(host: str, what: str, limit: int, hint: str = "") -> AnswerTooLarge:
    """The error for ``what`` (a function, a command) of which more than ``limit`` bytes came."""
    amount = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
    return AnswerTooLarge(f"{host}: {what} answered more than {amount}: closed", hint)


# ----------------------------------------------------------------------------------------------------------- values

_MARKS = (b",", b":", b"[", b"{")  # at most one value begins after each
_MARK_OR_STRING = re.compile(rb'([,:\[{])|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:(u(?!00))|.)", re.DOTALL)


def decode(data: bytes, most: int = MOST_VALUES) -> Any:
    """The value of a JSON text. ValueError where it is none, is nested too deeply, or has more than ``most`` values,
    or where a long text in it would take four bytes a character, as one character beyond Latin-1 has it."""
    if sum(map(data.count, _MARKS)) > most and _has_more(data, most):
        raise ValueError(f"more than {most:,} values")
    if len(data) > PAGE_LIMIT and (not data.isascii() or _has_wide_text(data)):
        raise ValueError(f"characters beyond Latin-1 in a text of more than {PAGE_LIMIT >> 20} MiB")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_file(text: str, where: str) -> Any:
    """The value of a JSON file of a host, as `decode`. RecordError that names ``where``."""
    try:
        return decode(text.encode("utf-8", "replace"))
    except ValueError as error:
        raise records.RecordError(f"{where}: damaged: no JSON that is read ({error})") from None


def _has_more(data: bytes, most: int) -> bool:
    """Whether more than ``most`` values may begin outside of the strings. Takes no memory."""
    marks = 0
    for match in _MARK_OR_STRING.finditer(data):
        marks += match[1] is not None
        if marks > most:
            return True
    return False


def _has_wide_text(data: bytes) -> bool:
    """Whether a string that is longer than a page has a character beyond Latin-1."""
    texts = (match.span() for match in _STRING.finditer(data))
    return any(
        escape[1] for start, end in texts if end - start > PAGE_LIMIT for escape in _ESCAPE.finditer(data, start, end)
    )


# ------------------------------------------------------------------------------------------------------------ bytes


def run_to_end(
    process: Process, what: str, stdin: bytes, timeout: float | None, limit: int = ANSWER_LIMIT
) -> Completed:
    """Feed a command its stdin, and read it to its end. AnswerTooLarge past ``limit`` bytes of stdout, TimeoutError
    after ``timeout`` seconds in all. The caller closes the process."""
    feeder = threading.Thread(target=_feed, args=(process.stdin, stdin), name="host-stdin", daemon=True)
    feeder.start()
    deadline = Deadline(timeout)
    process.limit_reading(deadline, STDERR_LIMIT)
    collected = bytearray()
    while data := cast(Any, process.stdout).read1(CHUNK):
        collected += data
        if len(collected) > limit:
            raise too_large(process.host, what, limit, FORCED)
    code = process.wait(None if timeout is None else max(0.01, timeout - deadline.spent))
    feeder.join(FEED_TIMEOUT)
    return Completed(code, bytes(collected), process.stderr_text().encode())


def _feed(stdin: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it ended without reading everything: its exit code tells
        stdin.write(data)
        stdin.close()


# ------------------------------------------------------------------------------------------------------------ lines


def read_line(
    process: Process,
    what: str,
    limit: int = LINE_LIMIT,
    seconds: float = LINE_TIMEOUT,
    silence: float | None = None,
) -> bytes:
    """The next line of a program, empty at its end.

    AnswerTooLarge where it is longer than ``limit`` bytes. LostContact where it does not end within ``seconds`` of its
    first byte, or where none begins within ``silence`` seconds.
    """
    stdout = cast(Any, process.stdout)
    try:
        process.limit_reading(Deadline(silence) if silence is not None else None)
        if not stdout.peek(1):
            return b""
        process.limit_reading(Deadline(seconds))
        line: bytes = stdout.readline(limit + 1)
        process.limit_reading(None)
    except TimeoutError as error:
        raise LostContact(f"{process.host}: {what}: {error}", "is the host up, and the link to it?") from error
    if len(line) > limit:
        raise too_large(process.host, f"{what}, in one line,", limit)
    return line


def lines_of(process: Process, what: str, limit: int = LINE_LIMIT, silence: float | None = None) -> Iterator[bytes]:
    """The lines of a program to its end; errors as of `read_line`."""
    while line := read_line(process, what, limit, silence=silence):
        yield line
