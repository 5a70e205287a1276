"""Programs on a host that print JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event
from typing import Any, ParamSpec

from midstream.errors import ConnectionLostError, Exit, MidstreamError, RemoteError
from midstream.hosts.host import Host, Process
from midstream.hosts.rpc.answer_limits import decode, lines_of
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.reporting_program import Report, ReportingProgram
from midstream.hosts.rpc.result_checks import HINT, name_of, report_of

LINE_TIMEOUT = 3600.0  # seconds between two lines: a large download may print none
EXIT_TIMEOUT = 30.0  # seconds from a program's last line to its exit
LAST = ("done", "verified", "problem")  # events of a last line

P = ParamSpec("P")


class Cancelled(MidstreamError):
    """Signal: the caller cancelled a long operation. Its effects so far stay."""

    code = Exit.INTERRUPTED


def reports(process: Process, function: str = "a program") -> Iterator[Any]:
    """Yield the JSON lines of a program.

    Raises ValueError for a malformed line, else as `read_line`.
    """
    for line in lines_of(process, function, first_byte_timeout=LINE_TIMEOUT):
        yield decode(line)


def last_words(process: Process) -> str:
    """Return the last line of a program's stderr: of a traceback, the error."""
    lines = process.stderr_text().strip().splitlines()
    return lines[-1].strip() if lines else "no message"


def run_program(
    host: Host, reporting: ReportingProgram[P, Report], cancel: Event | None = None
) -> Callable[P, AbstractContextManager[Iterator[Report]]]:
    """Return a program that needs no input, to run on ``host``.

    The returned context manager yields the program's reports, and closes the process at the end of the ``with`` block,
    also if reports are left unread.

    Raises:
        RemoteError: It ended without a last line (``done``, ``verified``, ``problem``).
        Cancelled: ``cancel`` was set between two lines.
        ConnectionLostError: The connection broke.
    """

    @contextmanager
    def run(*positional: P.args, **named: P.kwargs) -> Generator[Iterator[Report]]:
        process = start_program(host, reporting.program)(*positional, **named)
        try:
            yield _reports(host, reporting, process, cancel)
        finally:
            process.close()

    return run


def _reports(
    host: Host, reporting: ReportingProgram[..., Report], process: Process, cancel: Event | None
) -> Iterator[Report]:
    function = name_of(reporting.program)
    complete = False
    for line in lines_of(process, function, first_byte_timeout=LINE_TIMEOUT):
        try:
            value = decode(line)
            report = report_of(host.name, reporting, value)
        except ValueError as error:
            raise RemoteError(f"{host.name}: {function}: a line that is no JSON: {error}", "Answer", HINT) from None
        if cancel is not None and cancel.is_set():
            raise Cancelled(f"cancelled while {function} ran on {host.name}")
        complete = value["event"] in LAST
        yield report
    try:
        status = process.wait(EXIT_TIMEOUT)
    except TimeoutError as error:
        raise ConnectionLostError(
            f"{host.name}: {function} closed its output and does not exit", "run it again"
        ) from error
    if not complete:
        raise RemoteError(f"{function} on {host.name} ended with {status}: {last_words(process)}")
