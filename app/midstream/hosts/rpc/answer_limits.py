"""Limits on hosts' answers: bytes and values; length and time of a line.

Hosts are not trusted. Past a limit the command is closed, and the error names the host and the function.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import ANSWER_LIMIT, Completed, Process
from midstream_core import records
from midstream_host.declarations import PAGE_LIMIT

LINE_LIMIT = 8 << 20  # of one line of a program
PREAMBLE_LIMIT = 256 << 10  # of what a login shell prints before a command begins
STDERR_LIMIT = 4 << 20  # of stderr, of which the end is stored
MAX_VALUES = 500_000  # values of an answer: an empty list takes 3 bytes of JSON and 64 of memory
LINE_TIMEOUT = 60.0  # seconds from a line's first byte to its last
CHUNK = 1 << 16
FEED_TIMEOUT = 15.0  # seconds; the thread that writes stdin ends after the command

FORCED = "a forced command (command= in authorized_keys), or a login script that prints, is the usual cause"


class AnswerTooLargeError(HostError):
    """An answer is larger than its limit. The command was closed."""


def too_large(host: str, what: str, limit: int, hint: str = "") -> AnswerTooLargeError:
    """Return the error for an answer past ``limit`` bytes.

    ``what`` is what the answer is of: a function, a command.
    """
    amount = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
    return AnswerTooLargeError(f"{host}: {what} answered more than {amount}: closed", hint)


# ----------------------------------------------------------------------------------------------------------- values

_MARKS = (b",", b":", b"[", b"{")  # at most one value begins after each
_MARK_OR_STRING = re.compile(rb'([,:\[{])|"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:(u(?!00))|.)", re.DOTALL)


def decode(data: bytes, most: int = MAX_VALUES) -> Any:
    """Decode a JSON text.

    Raises:
        ValueError: It is malformed, is nested too deeply, has more than ``most`` values, or has a long string with a
            character beyond Latin-1 (Python then takes four bytes for each character).
    """
    if sum(map(data.count, _MARKS)) > most and _has_more(data, most):
        raise ValueError(f"more than {most:,} values")
    if len(data) > PAGE_LIMIT and (not data.isascii() or _has_wide_text(data)):
        raise ValueError(f"characters beyond Latin-1 in a text of more than {PAGE_LIMIT >> 20} MiB")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decode_file(text: str, where: str) -> Any:
    """Decode a JSON file of a host with `decode`'s limits.

    Raises:
        RecordError: The file is malformed or past a limit; the message names ``where``.
    """
    try:
        return decode(text.encode("utf-8", "replace"))
    except ValueError as error:
        raise records.RecordError(f"{where}: damaged: no JSON that is read ({error})") from None


def _has_more(data: bytes, most: int) -> bool:
    """Return whether over ``most`` values may begin outside strings, without decoding."""
    marks = 0
    for match in _MARK_OR_STRING.finditer(data):
        marks += match[1] is not None
        if marks > most:
            return True
    return False


def _has_wide_text(data: bytes) -> bool:
    """Return whether a string longer than a page has a character beyond Latin-1."""
    texts = (match.span() for match in _STRING.finditer(data))
    return any(
        escape[1] for start, end in texts if end - start > PAGE_LIMIT for escape in _ESCAPE.finditer(data, start, end)
    )


# ------------------------------------------------------------------------------------------------------------ bytes


def run_to_end(
    process: Process, what: str, stdin: bytes, timeout: float | None, limit: int = ANSWER_LIMIT
) -> Completed:
    """Write a command's stdin and read its output to the end.

    The caller closes the process.

    Args:
        process: The command.
        what: Name of the command in messages.
        stdin: Bytes for its standard input.
        timeout: Seconds in all; None: unlimited.
        limit: Bytes of stdout that are accepted.

    Raises:
        AnswerTooLargeError: The command wrote more than ``limit`` bytes of stdout.
        TimeoutError: The command did not end within ``timeout`` seconds.
    """
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
    with contextlib.suppress(OSError, ValueError):  # it exited without reading everything: its exit code shows why
        stdin.write(data)
        stdin.close()


# ------------------------------------------------------------------------------------------------------------ lines


def read_line(
    process: Process,
    what: str,
    limit: int = LINE_LIMIT,
    seconds: float = LINE_TIMEOUT,
    first_byte_timeout: float | None = None,
) -> bytes:
    """Read the next line of a program; empty at its end.

    Args:
        process: The program.
        what: Name of the program in messages.
        limit: Most bytes of the line.
        seconds: Longest time from its first byte to its end.
        first_byte_timeout: Longest time before its first byte, in seconds; None: unlimited.

    Raises:
        AnswerTooLargeError: It is longer than ``limit`` bytes.
        ConnectionLostError: It does not end within ``seconds`` of its first byte, or does not begin within
            ``first_byte_timeout`` seconds.
    """
    stdout = cast(Any, process.stdout)
    try:
        process.limit_reading(Deadline(first_byte_timeout) if first_byte_timeout is not None else None)
        if not stdout.peek(1):
            return b""
        process.limit_reading(Deadline(seconds))
        line: bytes = stdout.readline(limit + 1)
        process.limit_reading(None)
    except TimeoutError as error:
        raise ConnectionLostError(f"{process.host}: {what}: {error}", "is the host up, and the link to it?") from error
    if len(line) > limit:
        raise too_large(process.host, f"{what}, in one line,", limit)
    return line


def lines_of(
    process: Process, what: str, limit: int = LINE_LIMIT, first_byte_timeout: float | None = None
) -> Iterator[bytes]:
    """Yield the lines of a program. Raises as `read_line`."""
    while line := read_line(process, what, limit, first_byte_timeout=first_byte_timeout):
        yield line
