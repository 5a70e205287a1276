"""Streams of one copy over TLS between this machine and a host.

One program on the host serves all of them. The program listens at the address by which this machine reached the host's
SSH server, on ``copy_ports`` if given, and this machine connects: it opens no port itself. Certificates and keys travel
over the SSH connection. If no connection is there within a short time (a firewall), the streams go over SSH, and the
host is not tried again for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any

from midstream.errors import ConnectionLostError, HostError, MidstreamError
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import Host, Process
from midstream.hosts.local_host import LocalHost
from midstream.hosts.remote_hosts import is_ssh
from midstream.hosts.rpc.report_types import Connected, CopyLine, CopyProblem, Done, Landed
from midstream.transfer.copy_reports import checked_reports
from midstream.transfer.copy_settings import RELAY, CopySettings, ports_of
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.link import (
    BEHIND_PROXY,
    MAX_STREAMS,
    REASON_LIMIT,
    SOURCE,
    TARGET,
    Link,
    check_port,
    wait_listening,
)
from midstream.transfer.stream import Events, Stream
from midstream.transfer.stream_transport import start
from midstream.transfer.tls_certificates import make_peers
from midstream_host.copy import disk_receiver, sender, stream_server
from midstream_host.copy.requested_items import new_key

if TYPE_CHECKING:
    from midstream.hosts.ssh.ssh_host import SshHost


MIN_BYTES = 16 << 20  # of a copy for which a program that listens pays off
OPEN_TIMEOUT = 8.0  # seconds until the first stream is there: an interpreter starts at each end
CONNECT_TIMEOUT = 0.3  # seconds in which it answers, beside the round trips
HANDSHAKE_TIMEOUT = 5.0  # seconds
ROUND_TRIPS = 4  # that an answer may take in addition
RETRY_INTERVAL = 600.0  # seconds until a host whose port could not be reached is tried again

UNREACHABLE: dict[str, tuple[float, str]] = {}  # address and ports -> when, and why
_unreachable_lock = threading.Lock()


def host_of(source: Host, target: Host) -> SshHost | None:
    """Return the host at the other end if exactly one end is this machine."""
    for end, other in ((source, target), (target, source)):
        if isinstance(end, LocalHost) and is_ssh(other):
            return other
    return None


def not_possible(host: SshHost, settings: CopySettings) -> str:
    """Return why the host's port is not tried; empty if it is."""
    if settings.route == RELAY:
        return "copy_route: relay"
    if not host.peer_address:
        return BEHIND_PROXY
    with _unreachable_lock:
        when, why = UNREACHABLE.get(_key(host, settings), (0.0, ""))
    return why if why and time.monotonic() - when < RETRY_INTERVAL else ""


def _key(host: SshHost, settings: CopySettings) -> str:
    return f"{host.name} {host.peer_address} {ports_of(host, settings)}"


def direct_streams(
    source: Endpoint,
    target: Endpoint,
    settings: CopySettings,
    kind: str,
    generation: str,
    bytes_total: int,
    link: Future[Link],
) -> DirectStreams | None:
    """Begin to connect this machine with a host, for a copy of about ``bytes_total``.

    Returns None for other pairs of hosts, and where it does not pay off.

    Args:
        source: Endpoint that sends.
        target: Endpoint that receives.
        settings: Those of the copy.
        kind: What the copy may contain (`midstream_host.allowlist`).
        generation: Name of the staging directory.
        bytes_total: Bytes of the copy.
        link: The link over SSH, as soon as it is probed.
    """
    host = host_of(source.host, target.host)
    if host is None or bytes_total < MIN_BYTES:
        return None
    return DirectStreams(source, target, host, settings, kind, generation, link)


class DirectStreams:
    """The streams, and the program on the host that serves them."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        host: SshHost,
        settings: CopySettings,
        kind: str,
        generation: str,
        link: Future[Link],
    ) -> None:
        """Start the program, and connect its first stream, in a thread.

        Args:
            source: Endpoint that sends.
            target: Endpoint that receives.
            host: The host of one of them; the other is this machine.
            settings: Those of the copy.
            kind: What the copy may contain.
            generation: Name of the staging directory.
            link: The link over SSH, as soon as it is probed.
        """
        self._link = link
        self._source, self._target, self._host, self._settings = source, target, host, settings
        self._kind, self._generation = kind, generation
        self._sends = source.host is not host  # this machine sends
        self._address = host.peer_address
        self._peers = make_peers(host, (source if self._sends else target).host)
        count = max(settings.streams, MAX_STREAMS)
        self._keys = [new_key() for _ in range(count)]
        self._reports: list[Queue[CopyLine | Exception | None]] = [Queue() for _ in range(count)]
        self._lock = threading.Lock()
        self._next = 0  # number of the next stream
        self._port = 0
        self._timeout = CONNECT_TIMEOUT
        self._program: Process | None = None
        self._program_ended = threading.Event()
        self._closed = False
        self._first: Future[Process] = Future()  # this machine's end of the first stream
        self._first_taken = False
        self._late = False
        self._until = time.monotonic() + OPEN_TIMEOUT
        why = not_possible(host, settings)
        if why:
            self._first.set_exception(HostError(why))
        else:
            threading.Thread(target=self._begin, name="copy-direct", daemon=True).start()

    # --------------------------------------------------------------------------------------------- for the copy

    def link(self, link: Link) -> Link:
        """Return the link as the streams use it: direct, or over SSH with the reason."""
        why = self._why_not()
        if why:
            return replace(link, not_direct=why[:REASON_LIMIT])
        return replace(link, kind="direct", listener=TARGET if self._sends else SOURCE, address=self._address)

    def open(self, events: Events) -> Stream | None:
        """Open the next stream.

        Returns None if the host's port cannot be reached: the stream then goes over SSH.
        """
        if self._why_not():
            return None
        with self._lock:
            number, self._next = self._next, self._next + 1
            if number >= len(self._keys):
                return None
            if not number:
                self._first_taken = True
        try:
            process = self._dial(number) if number else self._first.result()
        except (MidstreamError, OSError, ValueError):
            return None
        return self._stream(number, process, events)

    def close(self) -> None:
        """End the program, and with it the streams that are left. Idempotent."""
        with self._lock:
            self._closed = True
            program, taken = self._program, self._first_taken
        if program is not None:
            program.close()
        if not taken and self._first.done() and self._first.exception() is None:
            self._first.result().close()

    def _why_not(self) -> str:
        """Return why there is no stream; empty if there is one. Waits until that is known."""
        late = f"no connection within {OPEN_TIMEOUT:.0f} s"
        if self._late:
            return late
        try:
            self._first.result(max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            self._late = True  # also if it is there later: all streams take the same route
            return late
        except (MidstreamError, OSError, ValueError) as error:
            return str(error)
        return ""

    # ------------------------------------------------------------------------------------------------ connecting

    def _begin(self) -> None:
        try:
            self._listen()
            first = self._dial(0)
        except (MidstreamError, OSError, ValueError) as error:
            if self._port:  # it listens, and cannot be reached
                self._remember(str(error))
            self._first.set_exception(error)
            self.close()
            return
        with self._lock:
            self._first.set_result(first)
            closed = self._closed
        if closed:
            first.close()

    def _remember(self, why: str) -> None:
        with _unreachable_lock:
            UNREACHABLE[_key(self._host, self._settings)] = (time.monotonic(), why)

    def _listen(self) -> None:
        peer = self._peers.listener(ports_of(self._host, self._settings), ssh_address=True)
        if self._sends:
            program = start(self._host, stream_server.receive, waiting=self._target.waiting())(
                directory=self._target.directory, generation=self._generation, kind=self._kind, keys=self._keys,
                peer=peer,
            )  # fmt: skip
        else:
            program = start(self._host, stream_server.send)(
                directory=self._source.directory, streams=len(self._keys), peer=peer
            )
        with self._lock:
            self._program = program
            closed = self._closed
        if closed:
            program.close()
        port = wait_listening(program, self._host).port
        self._timeout += ROUND_TRIPS * self._link.result(OPEN_TIMEOUT).seconds
        check_port(self._host, self._settings, port)
        self._port = port
        threading.Thread(target=self._read_reports, args=(program,), name="copy-reports", daemon=True).start()

    def _dial(self, number: int) -> Process:
        """Start this machine's end of a stream; return it once it is connected.

        Raises:
            HostError: It cannot be connected.
        """
        peer = {
            **self._peers.dialer([self._address], self._port),
            "stream": number,
            "connect_timeout": self._timeout,
            "handshake_timeout": HANDSHAKE_TIMEOUT,
        }
        if self._sends:
            process = start(self._source.host, sender.send)(directory=self._source.directory, peer=peer)
        else:
            process = start(self._target.host, disk_receiver.receive)(
                directory=self._target.directory, generation=self._generation, kind=self._kind,
                key=self._keys[number], peer=peer,
            )  # fmt: skip
        try:
            report = next(checked_reports(process, self._source if self._sends else self._target), None)
            if not isinstance(report, Connected):
                why = report.message if isinstance(report, CopyProblem) else "it ended"
                raise HostError(why.removeprefix("no connection: "))
        except BaseException:
            process.close()
            raise
        return process

    def _stream(self, number: int, process: Process, events: Events) -> Stream:
        program = self._program
        assert program is not None
        share = _Share(program, self._program_ended, partial(self._reports[number].put, None))
        sending, receiving = (process, share) if self._sends else (share, process)
        return _DirectStream(
            self._source, self._target, sending, receiving, events,
            relayed=False, key=self._keys[number], number=number, broken=self._remember,
            reports=self._reports_of(number) if self._sends else None,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------- reports of the program

    def _read_reports(self, program: Process) -> None:
        """Distribute the reports of the program on the host among the streams."""
        ended: Exception | None = None
        try:
            for report in checked_reports(program, self._target if self._sends else self._source):
                if isinstance(report, Done) and report.stream is None:
                    continue
                self._queue_of(report).put(report)
        except (OSError, ValueError, MidstreamError) as error:
            ended = error
        finally:
            self._program_ended.set()
            for queue in self._reports:
                queue.put(ended)

    def _queue_of(self, report: CopyLine) -> Queue[CopyLine | Exception | None]:
        name = self._host.name
        number = report.stream if isinstance(report, Landed | CopyProblem | Done) else None
        if number is None or not self._sends or not 0 <= number < len(self._reports):
            why = f": {report.message}" if isinstance(report, CopyProblem) else ""
            raise TransferError(f"{name}: the copy's program reports what no stream can{why}", _check(name))
        return self._reports[number]

    def _reports_of(self, number: int) -> Iterator[CopyLine]:
        while (report := self._reports[number].get()) is not None:
            if isinstance(report, Exception):
                raise report
            yield report
            if isinstance(report, Done):
                return


def _check(host: str) -> str:
    return f"check which program answers on {host}"


class _DirectStream(Stream):
    """A stream with its number in each line, for a program that serves several."""

    def __init__(self, *positional: Any, number: int, broken: Callable[[str], None], **named: Any) -> None:
        self._number, self._broken = number, broken
        super().__init__(*positional, **named)

    def _write_line(self, line: Mapping[str, object]) -> None:
        super()._write_line({**line, "stream": self._number})

    def failure(self) -> MidstreamError:
        error = super().failure()
        if isinstance(error, ConnectionLostError):
            self._broken(error.message)  # the next copy goes over SSH
        return error


class _Share:
    """One stream's share of the program on the host, in place of a process of its own."""

    def __init__(self, program: Process, ended: threading.Event, end_reports: Callable[[], None]) -> None:
        self._program, self._ended, self._end_reports = program, ended, end_reports
        self.host, self.stdin, self.stdout = program.host, program.stdin, program.stdout

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._program.limit_reading(deadline, stderr)

    def wait(self, timeout: float | None = None) -> int:
        """Return the program's exit code, 0 while it serves others."""
        return self._program.wait(timeout) if self._ended.is_set() else 0

    def stderr_text(self) -> str:
        return self._program.stderr_text()

    def close(self) -> None:
        """End the reports of this stream.

        The program serves others, and ends with `DirectStreams`.
        """
        self._end_reports()
