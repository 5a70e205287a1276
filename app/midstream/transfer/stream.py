"""One stream of a copy: a sender, a receiver, and the relay of bytes between them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import BinaryIO, Protocol

from midstream.errors import ConnectionLostError, MidstreamError
from midstream.hosts.host import Process
from midstream.hosts.rpc.remote_program import last_words
from midstream.hosts.rpc.report_types import CopyLine, CopyProblem, Done
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import RESUME_HINT
from midstream_host.copy.requested_items import RequestedItems
from midstream_host.copy_items import CopyItem

READ_SIZE = 1 << 18  # bytes of one read, if the kernel cannot splice the pipes
PIPE_SIZE = 1 << 20  # bytes
SHUTDOWN_TIMEOUT = 10.0  # seconds that a program may take to exit once its pipes are closed
MAX_QUEUED_BYTES = 32 << 20  # of work that the sender has in advance: it never waits for the operator
MAX_QUEUED_ITEMS = 4096

Events = Queue[object]  # `Reported` and `Ended` of programs; `Opened`, `Refused` and `Added` of a `StreamPool`


class StreamReporter(Protocol):
    """A program on a host whose reports are put on `Events`."""

    def failure(self) -> MidstreamError:
        """Return the error of a program that has ended too early."""
        ...


@dataclass(frozen=True)
class Reported:
    """A report of a program."""

    origin: StreamReporter
    report: CopyLine


@dataclass(frozen=True)
class StreamEnd:
    """A program's output has ended."""

    origin: StreamReporter


class Stream:
    """A sender and a receiver that run.

    Puts the receiver's lines on ``events``, each as `Reported`, and `StreamEnd` at the end.

    Attributes:
        last_report: The report with which the receiver has ended the stream, as soon as it is read.
    """

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        sender: Process,
        receiver: Process,
        events: Events,
        *,
        relayed: bool,
        key: str,
        reports: Iterator[CopyLine] | None = None,
    ) -> None:
        """Start the threads that relay and read.

        Args:
            source: Endpoint of the sender.
            target: Endpoint of the receiver.
            sender: The program that sends.
            receiver: The program that receives.
            events: Queue for the reports.
            relayed: The sender's stdout goes to the receiver's stdin; otherwise the programs are connected.
            key: Secret that the receiver has and the sender has not; it tags each item
                (`midstream_host.copy.requested_items`).
            reports: The receiver's reports; by default the lines of its output.
        """
        self._reports = reports
        self.source, self.target = source, target
        self._requests = RequestedItems(key)
        self._sender, self._receiver, self._events = sender, receiver, events
        self._source_error: Exception | None = None
        self._target_error: Exception | None = None
        self._bytes = self._items = 0  # sent to the sender, not written by the receiver yet
        self.ending = self.done = self.ended = False
        self.last_report: CopyProblem | Done | None = None
        self._pipes = _duplicate_descriptors(sender.stdout, receiver.stdin) if relayed else (None, None)
        self._threads = [
            threading.Thread(target=work, name=f"copy-{work.__name__.strip('_')}", daemon=True)
            for work in ((self._relay, self._read_reports) if relayed else (self._read_reports,))
        ]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------------------- work

    def needs_items(self, queued_bytes: int = MAX_QUEUED_BYTES) -> bool:
        """Return whether the sender needs more items to never wait.

        ``queued_bytes`` are enough.
        """
        return not self.ending and (self._items < 2 or (self._bytes < queued_bytes and self._items < MAX_QUEUED_ITEMS))

    @property
    def unfinished(self) -> bool:
        """Whether items were not written by the receiver, or may follow."""
        return self._items > 0 or not self.ending

    def send_items(self, items: Sequence[CopyItem], rate: float, *, last: bool) -> None:
        """Request items at ``rate`` bytes per second (0: no limit).

        ``last``: no items follow.
        """
        self._items += len(items)
        self._bytes += sum(item["length"] for item in items)
        self.ending = self.ending or last
        tagged = [self._requests.tagged(item) for item in items]
        self._write_line({"items": tagged, "rate": rate, **({"end": True} if last else {})})

    def set_rate(self, rate: float) -> None:
        """Limit the sender to ``rate`` bytes per second (0: no limit)."""
        self._write_line({"rate": rate})

    def landed(self, bytes_: int, items: int) -> None:
        """Count what the receiver has written."""
        self._bytes -= bytes_
        self._items -= items

    def _write_line(self, line: Mapping[str, object]) -> None:
        # The receiver reports what broke, or `failure` finds it.
        with contextlib.suppress(OSError, ValueError, ConnectionLostError):
            self._sender.stdin.write(json.dumps(line).encode() + b"\n")
            self._sender.stdin.flush()

    # ------------------------------------------------------------------------------------------------- bytes

    def _relay(self) -> None:
        try:
            out, into = self._pipes
            if out is not None and into is not None:
                self._splice(out, into)
            else:
                self._copy_bytes()
        finally:
            with contextlib.suppress(OSError, ValueError, ConnectionLostError):  # it may have exited
                self._receiver.stdin.close()

    def _splice(self, source: int, target: int) -> None:
        """Let the kernel move pages from pipe to pipe."""
        for pipe in (source, target):
            with contextlib.suppress(OSError):  # the user's limit of large pipes is reached
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        try:
            while os.splice(source, target, PIPE_SIZE):
                pass
        except OSError as error:  # the receiver has exited; its report says why
            self._target_error = error
        finally:
            os.close(source)
            os.close(target)

    def _copy_bytes(self) -> None:
        source, target = self._sender.stdout, self._receiver.stdin
        read = getattr(source, "read1", source.read)
        try:
            while chunk := read(READ_SIZE):
                try:
                    target.write(chunk)
                    target.flush()
                except (OSError, ValueError, ConnectionLostError) as error:
                    self._target_error = error
                    return
        except (OSError, ValueError, ConnectionLostError) as error:
            self._source_error = error

    def _read_reports(self) -> None:
        try:
            for report in self._reports or checked_reports(self._receiver, self.target):
                if self.last_report is None and isinstance(report, CopyProblem | Done):
                    self.last_report = report
                self._events.put(Reported(self, report))
        except (OSError, ValueError, MidstreamError) as error:
            self._target_error = error
        finally:
            self.ended = True
            self._events.put(StreamEnd(self))

    # ------------------------------------------------------------------------------------------------- the end

    def failure(self) -> MidstreamError:
        """Return the error of a stream that has ended without ``done``."""
        for endpoint, process, error in (
            (self.target, self._receiver, self._target_error),
            (self.source, self._sender, self._source_error),
        ):
            if isinstance(error, MidstreamError):
                return error
            try:
                status = process.wait(SHUTDOWN_TIMEOUT)
            except ConnectionLostError as lost:
                return lost
            except TimeoutError:
                return ConnectionLostError(f"{endpoint.host.name} no longer answers", RESUME_HINT)
            if status < 0:  # the other program may wait for ever
                return ConnectionLostError(
                    f"the copy's program for {endpoint} was ended by signal {-status}", RESUME_HINT
                )
            if status and process.stderr_text().strip():
                return MidstreamError(f"copying to or from {endpoint} ended with {status}: {last_words(process)}")
        return ConnectionLostError(f"the stream from {self.source} to {self.target} broke", RESUME_HINT)

    def close(self) -> None:
        """End both programs. Idempotent; what was verified stays."""
        for process in (self._sender, self._receiver):
            process.close()
        for thread in self._threads:
            thread.join(SHUTDOWN_TIMEOUT)


def _duplicate_descriptors(*streams: BinaryIO) -> tuple[int | None, ...]:
    """Duplicate the descriptors of pipes.

    A descriptor that is closed and reused elsewhere then gets no bytes.

    Returns None for all of them if one is no pipe of the kernel, or if this system has no splice: macOS.
    """
    if not hasattr(os, "splice"):
        return (None,) * len(streams)
    try:
        numbers = [stream.fileno() for stream in streams]
    except (OSError, AttributeError, ValueError):
        return (None,) * len(streams)
    return tuple(os.dup(number) for number in numbers)
