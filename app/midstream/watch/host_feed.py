"""Feed of one host, in a thread: runs its probe, and merges events into snapshots."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from midstream.errors import ConnectionLostError, MidstreamError, RemoteError
from midstream.fleet.fleet import HostConfig
from midstream.hosts.concurrency_limit import CONNECT_LIMIT
from midstream.hosts.host import Host, Process
from midstream.hosts.host_pool import HostPool
from midstream.hosts.reconnect import FEED, Reconnect
from midstream.hosts.rpc.answer_limits import decode, read_line
from midstream.hosts.rpc.probe_lines import PROBE
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import last_words
from midstream.hosts.rpc.result_checks import line_of, name_of
from midstream.watch import shell_probe
from midstream.watch.report_limits import ReportLimits
from midstream.watch.snapshot import DOWN, STALE
from midstream.watch.snapshot_store import SnapshotStore
from midstream_core.json_types import JsonObject, ReportLine
from midstream_host.machine import probe

FIRST_BEAT_TIMEOUT = 60.0  # seconds
ANSWER_TIMEOUT = 30.0  # seconds without any answer after which the host is reconnected
SHUTDOWN_TIMEOUT = 5.0  # seconds that a probe may take to exit
MIN_RETRY_PAUSE = 5.0  # seconds after a failed connection: servers block clients that try too often
PING_INTERVAL = 10.0  # seconds between two measurements of the host's clock
STALE_PING_INTERVAL = 2.0  # seconds; the same for a host without events
STALE_POLLS, STALE_MARGIN = 3, 2.0  # a host is stale after so many intervals and seconds without an event
WINDOW = 1 << 20  # bytes of unread output after which a probe blocks
LINE_LIMIT = 2 << 20  # bytes of a line: 256 KiB of metrics, each byte up to six in JSON

_log = logging.getLogger(__name__)


class HostFeed:
    """Keeps a probe running on a host. Nothing on the host depends on it."""

    def __init__(self, name: str, hosts: HostPool, store: SnapshotStore, interval: float) -> None:
        self.name = name
        self.begun = False  # it has had its turn to connect: a few hosts connect at a time
        self._hosts = hosts
        self._store = store
        self._min_interval = self._interval = interval
        self._probe_interval = interval  # that the probe has
        self._last_event = time.monotonic()  # when the last event other than a ping's answer arrived
        self._last_line = time.monotonic()  # when the last line arrived
        self._closed = 0.0  # when a probe that does not answer was closed last, monotonic
        self._connected = False
        self._speaks_json = True
        self._process: Process | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sent: dict[int, float] = {}  # ping -> when it was sent, UTC seconds
        self._shortest_trip = float("inf")  # seconds
        self._pinged = 0.0
        self._pings = 0
        self._thread = threading.Thread(target=self._listen, name=f"watch-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Request the thread to end; `join` waits for it."""
        self._stopped.set()
        with self._lock:
            if self._process is not None:
                _in_background(self._process.close)

    def join(self, deadline: float) -> None:
        """Wait until the thread has ended, or until ``deadline`` (monotonic seconds).

        A thread that is still connecting cannot be interrupted; it is not waited for and ends later.
        """
        if self._process is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def tick(self) -> None:
        """Detect a host without events. Called regularly from another thread."""
        now = time.monotonic()
        with self._lock:
            process, age = self._process, now - self._last_event
            if process is None or not self._connected or age <= STALE_POLLS * self._interval + STALE_MARGIN:
                return
        # A thread that uses no file answers pings: this distinguishes a slow disk from a lost connection.
        if now - self._pinged > STALE_PING_INTERVAL:
            self._ping(process.stdin)
        answers = self._last_line > self._last_event
        why = "it answers, but its disk does not: does a file system hang?" if answers else "reconnecting soon"
        self._store.mark_stale(self.name, f"no news since {age:.0f} s; {why}")
        if now - max(self._last_line, self._closed) > ANSWER_TIMEOUT:
            self._closed = now  # once in that time: each call is a thread, which may wait as long as the host hangs
            _in_background(process.close)

    # ---------------------------------------------------------------------------------------- thread

    def _listen(self) -> None:
        reconnect = Reconnect(FEED)
        while not self._stopped.is_set():
            try:
                self._store.connecting(self.name)
                self._follow()
            except Exception as error:  # noqa: BLE001  without this thread old values would count as live for ever
                if not isinstance(error, (*FEED.lost, MidstreamError)):
                    _log.exception("the feed of %s failed and starts again", self.name)
                was_connected, self._connected = self._connected, False
                if self._stopped.is_set():
                    return
                if was_connected:
                    reconnect.reset()
                self._store.link(self.name, *_reason(error, was_connected))
                refused = isinstance(error, MidstreamError) and not was_connected
                self._stopped.wait(reconnect.delay(MIN_RETRY_PAUSE if refused else 0.0))

    def _follow(self) -> None:
        """Merge the probe's events until it exits, which is always an error."""
        config = self._hosts.fleet.hosts[self.name]
        with CONNECT_LIMIT.slot():
            self.begun = True
            host = self._hosts.get(self.name)
            process, parse = self._start(host, config)
        with self._lock:
            self._process = process
            self._last_event = self._last_line = time.monotonic()
        try:
            if self._stopped.is_set():
                return
            self._sent.clear()
            self._pinged = 0.0
            limits = ReportLimits(self.name)
            for line in self._lines(process):
                self._last_line = time.monotonic()
                for event in parse(line):
                    limits.count(len(line), event)
                    self._merge(process.stdin, event)
            code = process.wait(SHUTDOWN_TIMEOUT)
            raise RemoteError(f"the probe on {self.name} exited with {code}: {last_words(process)}", "Probe")
        except TimeoutError:
            raise ConnectionLostError(f"{self.name} closed the probe's channel") from None
        finally:
            with self._lock:
                self._process = None
            process.close()

    def _lines(self, process: Process) -> Iterator[bytes]:
        """Yield the probe's lines to its end. ConnectionLostError without a beat in time."""
        began = time.monotonic()
        while True:
            first_byte_timeout = None if self._connected else max(0.1, began + FIRST_BEAT_TIMEOUT - time.monotonic())
            line = read_line(process, "its probe", LINE_LIMIT, ANSWER_TIMEOUT, first_byte_timeout)
            if not line:
                return
            yield line

    def _start(
        self, host: Host, config: HostConfig
    ) -> tuple[Process, Callable[[bytes], Iterable[Mapping[str, object]]]]:
        """Start the probe. Returns it, and the parser of its lines."""
        if not host.remote_python:
            self._interval, self._speaks_json = max(shell_probe.MIN_INTERVAL, self._min_interval), False
            process = host.open(shell_probe.command(host.root, self._interval), window=WINDOW)
            return process, shell_probe.ShellProbeParser(config.devices, host.root, config.visible).parse
        self._speaks_json = True
        self._probe_interval = self._interval
        process = start_program(host, probe.main, window=WINDOW)(
            root=host.root,
            interval=self._probe_interval,
            devices=config.devices,
            visible=config.visible,
            positions=self._store.metrics_known(self.name),
        )
        return process, self._parse_json

    def _parse_json(self, line: bytes) -> Iterable[JsonObject]:
        return (line_of(self.name, name_of(probe.main), PROBE, decode(line)),)

    def set_interval(self, seconds: float) -> None:
        """Set the poll interval. A host without Python keeps its own."""
        with self._lock:
            if not self._speaks_json or self._interval == seconds:
                return
            process, self._interval = self._process, seconds
            if process is None or not self._connected:
                return  # the next probe starts with it, or gets it after its first beat
            self._probe_interval = seconds
        self._send(process.stdin, {"pace": seconds})

    def _merge(self, stdin: BinaryIO, event: ReportLine) -> None:
        if event["event"] == "clock":
            self._measure_skew(event)
            return
        self._last_event = self._last_line
        self._store.take(self.name, event)
        if event["event"] == "beat" and not self._connected:
            with self._lock:
                self._connected = True
                late = self._speaks_json and self._probe_interval != self._interval
                self._probe_interval = self._interval
            if late:  # it was set while the probe started
                self._send(stdin, {"pace": self._probe_interval})
        if event["event"] in ("hello", "beat") and time.monotonic() - self._pinged > PING_INTERVAL:
            self._ping(stdin)

    def _ping(self, stdin: BinaryIO) -> None:
        self._pinged = time.monotonic()
        self._pings += 1
        self._sent = {self._pings: time.time()}
        self._send(stdin, {"ping": self._pings})

    def _send(self, stdin: BinaryIO, message: JsonObject) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # the probe has exited: its reader is about to get the end of file
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()

    def _measure_skew(self, event: ReportLine) -> None:
        """Compare the host's clock with the middle of the round trip.

        The error is at most half of the round trip.
        """
        sent, now = self._sent.pop(event["ping"], None), time.time()
        if sent is None:
            return
        trip = max(0.0, now - sent)
        # A trip that was delayed behind other lines is inaccurate; an earlier one was better.
        if trip <= 2 * self._shortest_trip:
            self._shortest_trip = min(self._shortest_trip, trip)
            self._store.skew(self.name, event["time"] - (sent + now) / 2)


def _reason(error: Exception, was_connected: bool) -> tuple[str, str]:
    """Return the link's state, and a line with the reason."""
    if isinstance(error, MidstreamError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"the connection is lost: {error}"
    else:
        text = f"the probe's line cannot be read: {type(error).__name__}: {error}"
    text = " ".join(text.split())
    # After a connection that worked, the last values are old, but not wrong.
    return (STALE, f"{text}; reconnecting") if was_connected else (DOWN, text)


def _in_background(close: Callable[[], None]) -> None:
    """Close in a thread of its own.

    Closing waits for the other end, and the caller must not wait.
    """
    threading.Thread(target=close, name="watch-close", daemon=True).start()
