"""Session of a copy at its target, at this machine's end.

The other end is `midstream_host.copy.session`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from queue import Empty

from midstream.errors import ConnectionLostError, MidstreamError
from midstream.hosts.rpc.remote_program import Cancelled, last_words
from midstream.hosts.rpc.report_types import Committed, CopyLine, CopyProblem, Ready
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import RESUME_HINT
from midstream.transfer.stream import Events, Reported, StreamEnd
from midstream.transfer.stream_transport import start
from midstream_core.json_types import JsonObject, JsonValue
from midstream_host.copy import session
from midstream_host.copy_items import CopyObject

HEARTBEAT_INTERVAL = 5.0  # seconds; the program at the target exits after six times as long without one
SHUTDOWN_TIMEOUT = 10.0  # seconds
POLL_INTERVAL = 0.1  # seconds between two checks of ``cancel``


def new_generation() -> str:
    """Return a name for the staging directory of one copy."""
    return secrets.token_hex(8)


class TargetSession:
    """Session with the program at the target, as events.

    Puts each line of the program on ``events``, as `Reported`, and `StreamEnd` at the end.
    """

    def __init__(
        self,
        target: Endpoint,
        objects: Sequence[CopyObject],
        events: Events,
        *,
        manifest: str | None,
        text: str = "",
        survey: bool = True,
        generation: str = "",
        kind: str,
    ) -> None:
        """Start the program at the target.

        Args:
            target: Endpoint that receives the tree.
            objects: The objects that it receives.
            events: Queue for the reports.
            manifest: Name of the manifest; None if the files are no tree.
            text: Text of the manifest.
            survey: Whether the program reports the objects that the target has.
            generation: Name of the staging directory; a new one by default.
            kind: What the tree has to be (`midstream_host.allowlist`).
        """
        self.target = target
        self.generation = generation or new_generation()
        self._events = events
        self._error: Exception | None = None
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._process = start(target.host, session.serve, waiting=target.waiting())(
            directory=target.directory,
            generation=self.generation,
            objects=[{"path": entry["path"], "size": entry["size"], "sha256": entry["sha256"]} for entry in objects],
            manifest=manifest,
            text=text,
            root=target.host.root,
            survey=survey,
            kind=kind,
        )
        self._threads = [
            threading.Thread(target=work, name=f"copy-{work.__name__.strip('_')}", daemon=True)
            for work in (self._read_reports, self._send_heartbeats)
        ]
        for thread in self._threads:
            thread.start()

    def landed(self, ranges: Sequence[Sequence[JsonValue]]) -> None:
        """Report ranges ``[path, offset, length]`` that are in the staging directory."""
        self._write_line({"do": "landed", "ranges": list(ranges)})

    def commit(self) -> None:
        """Request the manifest to be written, once what has landed is verified.

        The program answers ``committed``.
        """
        self._write_line({"do": "commit"})

    def wait_for(
        self,
        last: type[Ready | Committed],
        *,
        on_problem: Callable[[CopyProblem], MidstreamError],
        on_report: Callable[[CopyLine], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        """Read the session's reports up to the one of type ``last``.

        Args:
            last: The type of the last report.
            on_problem: Returns the error for a problem that the program reports.
            on_report: Called with each other report.
            cancel: Ends the wait when it is set.

        Raises:
            Cancelled: ``cancel`` was set.
            MidstreamError: The program reported a problem, or exited.
        """
        while True:
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"the copy to {self.target} was cancelled")
            try:
                event = self._events.get(timeout=POLL_INTERVAL)
            except Empty:
                continue
            if isinstance(event, StreamEnd) and event.origin is self:
                raise self.failure()
            if not isinstance(event, Reported) or event.origin is not self:
                continue  # of a stream that was closed
            report = event.report
            if isinstance(report, last):
                return
            if isinstance(report, CopyProblem):
                raise on_problem(report)
            if on_report is not None:
                on_report(report)

    def _write_line(self, line: JsonObject) -> None:
        # `failure` returns what broke.
        with self._writing, contextlib.suppress(OSError, ValueError, ConnectionLostError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_INTERVAL):
            self._write_line({"do": "heartbeat"})

    def _read_reports(self) -> None:
        try:
            for report in checked_reports(self._process, self.target):
                self._events.put(Reported(self, report))
        except (OSError, ValueError, MidstreamError) as error:
            self._error = error
        finally:
            self._events.put(StreamEnd(self))

    def failure(self) -> MidstreamError:
        """Return the error of a session that has ended too early."""
        if isinstance(self._error, MidstreamError):
            return self._error
        try:
            status = self._process.wait(SHUTDOWN_TIMEOUT)
        except ConnectionLostError as lost:
            return lost
        except TimeoutError:
            return ConnectionLostError(f"{self.target.host.name} no longer answers", RESUME_HINT)
        if not self._process.stderr_text().strip():
            # The program exits so without heartbeats: this machine slept, or the link was down.
            return ConnectionLostError(
                f"the program that receives on {self.target} was ended (exit code {status})", RESUME_HINT
            )
        return MidstreamError(f"copying to {self.target} ended with {status}: {last_words(self._process)}")

    def __enter__(self) -> TargetSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the program. Idempotent."""
        self._closed.set()
        self._process.close()
        for thread in self._threads:
            thread.join(SHUTDOWN_TIMEOUT)
