"""Streaming programs on a host that talk in JSON, a line at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

from midstream.errors import Exit, LostContact, MidstreamError, RemoteError
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import decode, lines_of
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.result_checks import HINT, report_of

SILENCE = 3600.0  # seconds without a line after which a program is given up: a large download may print none
ENDING = 30.0  # seconds that a program may take to end after its last line
LAST = ("done", "verified", "problem")


class Cancelled(MidstreamError):
    """Somebody set the event that a long work watches. What was done so far stays done."""

    code = Exit.INTERRUPTED


def reports(process: Process, function: str = "a program") -> Iterator[dict[str, Any]]:
    """The JSON lines of a program, until it closes its stdout. ValueError where one is no JSON, else as `read_line`."""
    for line in lines_of(process, function, silence=SILENCE):
        yield decode(line)


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
        for line in lines_of(process, function, silence=SILENCE):
            try:
                report = report_of(host.name, function, decode(line))
            except ValueError as error:
                raise RemoteError(f"{host.name}: {function}: a line that is no JSON: {error}", "Answer", HINT) from None
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"cancelled while {function} ran on {host.name}")
            spoken = report["event"] in LAST
            yield report
        try:
            status = process.wait(ENDING)
        except TimeoutError as error:
            raise LostContact(f"{host.name}: {function} closed its output and does not end", "run it again") from error
        if not spoken:
            raise RemoteError(f"{function} on {host.name} ended with {status}: {last_words(process)}")
    finally:
        process.close()
