"""Streaming programs on a host that talk in JSON, a line at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

from midstream.errors import Exit, MidstreamError, RemoteError
from midstream.hosts.base import Host, Process
from midstream.hosts.far import start_program

ENDING = 30.0  # seconds that a program may take to end after its last line
LAST = ("done", "verified", "problem")


class Cancelled(MidstreamError):
    """Somebody set the event that a long work watches. What was done so far stays done."""

    code = Exit.INTERRUPTED


def reports(process: Process) -> Iterator[dict[str, Any]]:
    """The JSON lines of a program, until it closes its stdout."""
    for line in iter(process.stdout.readline, b""):
        yield json.loads(line)


def last_words(process: Process) -> str:
    """The last line that a program wrote to stderr: of a traceback, the error."""
    lines = process.stderr_text().strip().splitlines()
    return lines[-1].strip() if lines else "no message"


def run_program(
    host: Host, function: str, arguments: Mapping[str, Any], cancel: Event | None = None
) -> Iterator[dict[str, Any]]:
    """Run a program of ``midstream.remote`` that only talks, and yield its lines.

    RemoteError where it ends without its last word (``done``, ``verified``, ``problem``), Cancelled where ``cancel``
    was set between two lines, LostContact where the connection dies."""
    process = start_program(host, function, dict(arguments))
    try:
        spoken = False
        for report in reports(process):
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"cancelled while {function} ran on {host.name}")
            spoken = report["event"] in LAST
            yield report
        status = process.wait(ENDING)
        if not spoken:
            raise RemoteError(f"{function} on {host.name} ended with {status}: {last_words(process)}")
    finally:
        process.close()
