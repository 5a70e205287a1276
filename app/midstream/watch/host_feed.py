"""One host, listened to by one thread for as long as anybody watches."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from midstream.errors import HostError, LostContact, RemoteError
from midstream.hosts.backoff import Backoff
from midstream.hosts.concurrency_limit import REACHING
from midstream.hosts.host import Host, Process
from midstream.hosts.host_pool import Hosts
from midstream.hosts.rpc.answer_limits import decode, read_line
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import last_words
from midstream.hosts.rpc.result_checks import report_of
from midstream.watch import shell_probe
from midstream.watch.line_limits import Allowance
from midstream.watch.snapshot import DOWN, STALE
from midstream.watch.snapshot_store import Store
from midstream_engine import records

REFUSED_PAUSE = 5.0  # seconds at least after a host was not reached or refused: servers bar who knocks too often
PING = 10.0  # seconds between two looks at the host's clock
STALE_LOOKS, STALE_MARGIN = 3, 2.0  # stale is who said nothing for so many intervals and so many seconds more
PING_SILENT = 2.0  # the same, while it says nothing by itself
GIVE_UP = 30.0  # seconds without any answer after which the connection is made anew
WINDOW = 1 << 20  # bytes that a probe may be ahead of us: then it has to wait, and nothing piles up here
LINE_LIMIT = 2 << 20  # bytes of a line: 256 KiB of metrics, each byte up to six in JSON
FIRST_BEAT = 60.0  # seconds until a probe's first beat
ENDING = 5.0  # seconds that a probe may take to end


class Feed:
    """Keeps a probe running on the host, and the store told. The host's own work never depends on it."""

    def __init__(self, name: str, hosts: Hosts, store: Store, interval: float):
        self.name = name
        self._hosts = hosts
        self._store = store
        self._interval = self._pace = interval
        self._told = time.monotonic()  # when the last line came that was no mere answer to a ping
        self._heard = time.monotonic()  # when anything came
        self._connected = False
        self._speaks_json = True
        self._process: Process | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._sent: dict[int, float] = {}  # ping -> when it was sent, UTC seconds
        self._best = float("inf")  # shortest round trip, seconds
        self._pinged = 0.0
        self._pings = 0
        self._thread = threading.Thread(target=self._listen, name=f"watch-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end. `join` waits for that."""
        self._stopped.set()
        with self._lock:
            if self._process is not None:
                _in_background(self._process.close)

    def join(self, deadline: float) -> None:
        """Wait until it has ended, or until ``deadline`` (monotonic seconds). A thread that is still reaching for its
        host is left behind: nothing can interrupt that, and it ends by itself."""
        if self._process is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def tick(self) -> None:
        """Now and then, from another thread: notice silence."""
        now = time.monotonic()
        with self._lock:
            process, silence = self._process, now - self._told
            if process is None or not self._connected or silence <= STALE_LOOKS * self._pace + STALE_MARGIN:
                return
        # Pings are answered by a thread that touches no file: so a slow disk can be told from a dead link.
        if now - self._pinged > PING_SILENT:
            self._ping(process.stdin)
        answers = self._heard > self._told
        why = "it answers, but its disk does not: a file system that hangs?" if answers else "reconnecting soon"
        self._store.silent(self.name, f"no news since {silence:.0f} s; {why}")
        if now - self._heard > GIVE_UP:
            _in_background(process.close)

    # ------------------------------------------------------------------------------------------ its thread

    def _listen(self) -> None:
        backoff = Backoff()
        while not self._stopped.is_set():
            try:
                self._store.connecting(self.name)
                self._follow()
            except (HostError, records.RecordError, OSError, ValueError, KeyError, TypeError) as error:
                was_connected, self._connected = self._connected, False
                if self._stopped.is_set():
                    return
                if was_connected:
                    backoff.reset()
                self._store.link(self.name, *_reason(error, was_connected))
                refused = isinstance(error, HostError) and not was_connected
                self._stopped.wait(backoff.pause(REFUSED_PAUSE if refused else 0.0))

    def _follow(self) -> None:
        """Until the probe ends, which is always an error: it has no reason to."""
        config = self._hosts.fleet.hosts[self.name]
        with REACHING.take():
            host = self._hosts.get(self.name)
            process, understand = self._start(host, config.devices)
        with self._lock:
            self._process = process
            self._told = self._heard = time.monotonic()
        try:
            if self._stopped.is_set():
                return
            self._sent.clear()
            self._pinged = 0.0
            allowance = Allowance(self.name)
            for line in self._lines(process):
                self._heard = time.monotonic()
                for told in understand(line):
                    allowance.take(len(line), told)
                    self._take(process.stdin, told)
            code = process.wait(ENDING)
            raise RemoteError(f"the probe on {self.name} ended with {code}: {last_words(process)}", "Probe")
        except TimeoutError:
            raise LostContact(f"{self.name} closed the probe's channel") from None
        finally:
            with self._lock:
                self._process = None
            process.close()

    def _lines(self, process: Process) -> Iterator[bytes]:
        """The probe's lines to its end. LostContact where none comes before the first beat."""
        began = time.monotonic()
        while True:
            silence = None if self._connected else max(0.1, began + FIRST_BEAT - time.monotonic())
            line = read_line(process, "its probe", LINE_LIMIT, GIVE_UP, silence)
            if not line:
                return
            yield line

    def _start(self, host: Host, devices: int | None) -> tuple[Process, Callable[[bytes], Iterable[Mapping[str, Any]]]]:
        """The probe, and what makes events of its lines."""
        if not host.far_python:
            self._pace, self._speaks_json = max(shell_probe.SLOWEST_START, self._interval), False
            process = host.open(shell_probe.command(host.root, self._pace), window=WINDOW)
            return process, shell_probe.PlainReader(devices).take
        self._speaks_json = True
        arguments = {
            "root": host.root,
            "interval": self._pace,
            "devices": devices,
            "known": self._store.metrics_known(self.name),
        }
        return start_program(host, "machine.probe.main", arguments, window=WINDOW), self._understand

    def _understand(self, line: bytes) -> Iterable[Mapping[str, Any]]:
        return (report_of(self.name, "machine.probe.main", decode(line)),)

    def pace(self, seconds: float) -> None:
        """Look every so many seconds from now on. A host without Python keeps its own pace."""
        with self._lock:
            if not self._speaks_json or self._pace == seconds:
                return
            process, self._pace = self._process, seconds
            if process is None or not self._connected:
                return  # the next probe begins with it
        self._say(process.stdin, {"pace": seconds})

    def _take(self, stdin: BinaryIO, told: Mapping[str, Any]) -> None:
        if told["event"] == "clock":
            self._clock(told)
            return
        self._told = self._heard
        self._store.take(self.name, told)
        if told["event"] == "beat":
            self._connected = True
        if told["event"] in ("hello", "beat") and time.monotonic() - self._pinged > PING:
            self._ping(stdin)

    def _ping(self, stdin: BinaryIO) -> None:
        self._pinged = time.monotonic()
        self._pings += 1
        self._sent = {self._pings: time.time()}
        self._say(stdin, {"ping": self._pings})

    def _say(self, stdin: BinaryIO, what: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is gone: its reader is about to find out
            stdin.write(json.dumps(what).encode() + b"\n")
            stdin.flush()

    def _clock(self, told: Mapping[str, Any]) -> None:
        """The host's clock against the middle of the round trip: the error is at most half of it."""
        sent, now = self._sent.pop(told["ping"], None), time.time()
        if sent is None:
            return
        trip = max(0.0, now - sent)
        # A trip that had to wait behind other lines says little; a better one was seen already.
        if trip <= 2 * self._best:
            self._best = min(self._best, trip)
            self._store.skew(self.name, told["time"] - (sent + now) / 2)


def _reason(error: Exception, was_connected: bool) -> tuple[str, str]:
    """The link's state and the line that explains it."""
    if isinstance(error, HostError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"the connection is gone: {error}"
    else:
        text = f"the probe's line cannot be read: {type(error).__name__}: {error}"
    text = " ".join(text.split())
    # Contact was there a moment ago: what is known is old rather than wrong.
    return (STALE, f"{text}; reconnecting") if was_connected else (DOWN, text)


def _in_background(close: Callable[[], None]) -> None:
    """Closing waits for the other end; whoever asks for it must not."""
    threading.Thread(target=close, name="watch-close", daemon=True).start()
