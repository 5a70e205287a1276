"""Connection of one process to the coordinator.

Messages may come from any thread; the first failure is reported.

Process 0 listens at the coordinator's address (`coordinator`); every process, process 0 too, has one connection to it
as long as the attempt runs. A process that ends is therefore detected at once, and one that is stopped or unreachable
after the heartbeat timeout, even while the training loop waits for it in a collective.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from midstream_core.attempt.errors import EngineError
from midstream_core.json_types import JsonValue
from midstream_engine.processes.coordinator import (
    CONNECTION_LOST,
    HEARTBEATS_PER_TIMEOUT,
    SIGNAL_TIMEOUT,
    Coordinator,
    no_heartbeat,
    split_address,
)
from midstream_engine.processes.frames import Channel, FrameError, Message

log = logging.getLogger(__name__)
CONNECT_INTERVAL = 0.2  # seconds between two tries to connect to process 0
CONNECT_TIMEOUT = 10.0  # seconds of one try
MESSAGE_TIMEOUT = 3600.0  # seconds that a running process may delay the others
LEAVE_TIMEOUT = 600.0  # seconds to wait for the others at the orderly end
MAX_REASON = 2000  # characters
DISCONNECTED = "this process has disconnected from the others"


class PeerLostError(EngineError):
    """Failure of a process that others depend on.

    A failed process has exited, or sent no heartbeat within a time limit. The message names the process.
    """


@dataclass(frozen=True)
class Peer:
    """One process of the attempt."""

    process: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


class CoordinatorClient:
    """One process's connection to the coordinator.

    Messages have a key and a sender; each is received once.
    """

    def __init__(
        self, process: int, count: int, channel: Channel, coordinator: Coordinator | None, heartbeat_timeout: float
    ) -> None:
        self.process, self.count = process, count
        self.peers: list[Peer] = []
        self._channel, self._coordinator, self._timeout = channel, coordinator, heartbeat_timeout
        self._inbox: dict[tuple[str, int], deque[bytes]] = {}
        self._failures: dict[int, str] = {}
        self._changed = threading.Condition()
        self._leaving = threading.Event()
        self._closed = False
        self._on_failure: Callable[[str], None] | None = None
        self._stop = ""  # of another process; empty while none has stopped
        self._on_stop: Callable[[str], None] | None = None

    # --------------------------------------------------------------------------------------------------- messages

    def send(self, key: str, value: bytes, to: int | None = None) -> None:
        """Send ``value`` under ``key`` to process ``to``, or to all including this one.

        Raises PeerLostError where process 0 has failed.
        """
        try:
            self._channel.send(Message("message", self.process, {"key": key, "to": to}, value))
        except OSError:
            self._add_failure(0, CONNECTION_LOST)
            raise PeerLostError(self.first_failure() or DISCONNECTED) from None

    def receive(self, key: str, sender: int, timeout: float = MESSAGE_TIMEOUT) -> bytes:
        """Wait for the next message of ``sender`` under ``key``.

        Raises PeerLostError where the sender has failed, or sent nothing within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (waiting := self._inbox.get((key, sender))):
                if sender in self._failures or 0 in self._failures:
                    raise PeerLostError(self.first_failure())
                if self._closed:
                    raise PeerLostError(DISCONNECTED)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise PeerLostError(f"{self.peers[sender]} did not send {key!r} within {timeout:.0f} s")
                self._changed.wait(remaining)
            value = waiting.popleft()
            if not waiting:
                del self._inbox[key, sender]
            return value

    def receive_any(self, key: str, timeout: float = MESSAGE_TIMEOUT) -> bytes:
        """Wait for a message under ``key`` from any process.

        All senders send the same message. Raises PeerLostError.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for sender in range(self.count):
                    if waiting := self._inbox.get((key, sender)):
                        return waiting[0]
                if self._failures:
                    raise PeerLostError(self.first_failure())
                if self._closed:
                    raise PeerLostError(DISCONNECTED)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise PeerLostError(f"no process sent {key!r} within {timeout:.0f} s")
                self._changed.wait(remaining)

    def discard(self, prefix: str) -> None:
        """Drop all messages that were not received and whose keys begin with ``prefix``."""
        with self._changed:
            for key in [key for key in self._inbox if key[0].startswith(prefix)]:
                del self._inbox[key]

    def exchange(self, key: str, value: bytes, timeout: float = MESSAGE_TIMEOUT) -> list[bytes]:
        """Send ``value`` to all; return each process's value under the same key.

        The values are in the order of processes. A barrier.

        Raises PeerLostError.
        """
        self.send(key, value)
        deadline = time.monotonic() + timeout
        return [self.receive(key, sender, max(0.0, deadline - time.monotonic())) for sender in range(self.count)]

    def broadcast(self, key: str, value: bytes | None, timeout: float = MESSAGE_TIMEOUT) -> bytes:
        """Return the ``value`` of process 0 on all processes; the others pass None.

        Raises PeerLostError.
        """
        if self.process == 0:
            assert value is not None
            self.send(key, value)
        return self.receive(key, 0, timeout)

    # ---------------------------------------------------------------------------------------------------- failures

    def first_failure(self) -> str:
        """Return one line on the process that failed first; empty while none has."""
        with self._changed:
            for process, reason in self._failures.items():
                return f"{self.peers[process]} failed: {reason}"
        return ""

    def on_failure(self, call: Callable[[str], None]) -> None:
        """Call ``call`` with `first_failure` at the first failure.

        The receiving thread makes the call; after a failure, the caller's thread at once.
        """
        self._on_failure = call
        if self.first_failure():
            call(self.first_failure())

    def wait_for_failure(self, seconds: float) -> str:
        """Wait for `first_failure`.

        A collective fails some time before the failed process is identified.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._failures and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(remaining)
        return self.first_failure()

    def report_failure(self, reason: str) -> None:
        """Send the reason why this process is about to fail."""
        if self._coordinator is not None:
            self._coordinator.fail(reason[:MAX_REASON])
            return
        try:
            self._channel.send(Message("failure", self.process, {"reason": reason[:MAX_REASON]}))
        except OSError as error:
            log.debug("the coordinator has ended before this process: %s", error)

    def on_stop(self, call: Callable[[str], None]) -> None:
        """Call ``call`` with a line on the process that has stopped.

        The receiving thread makes the call; if a process has stopped already, the caller's thread at once.
        """
        self._on_stop = call
        if self._stop:
            call(self._stop)

    def report_stop(self, reason: str) -> None:
        """Send the reason why this process stops the attempt.

        Process 0 waits until the others have disconnected.
        """
        self._leaving.set()
        if self._coordinator is not None:
            self._coordinator.stop(self.process, reason[:MAX_REASON])
            return
        try:
            self._channel.send(Message("stop", self.process, {"reason": reason[:MAX_REASON]}))
        except OSError as error:
            log.debug("the coordinator has ended before this process: %s", error)

    def leave(self, timeout: float = LEAVE_TIMEOUT) -> None:
        """Wait for the others, then disconnect: the orderly end.

        A peer may disconnect earlier than this process.
        """
        self._on_failure = None
        try:
            self.exchange("leave", b"", timeout)
        except PeerLostError as error:
            log.debug("leaving: %s", error)
        self._leaving.set()
        if self._coordinator is None:
            try:
                self._channel.send(Message("leave", self.process))
            except OSError as error:  # process 0 has ended, as it may by now
                log.debug("leaving: %s", error)
        self.close()

    def close(self) -> None:
        """Disconnect without waiting.

        A thread that waits for a message gets a PeerLostError.
        """
        self._leaving.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._coordinator is not None:
            self._coordinator.close()
        self._channel.close()

    # ----------------------------------------------------------------------------------------------------- threads

    def start_heartbeat(self) -> None:
        """Send heartbeats from a thread, independently of the rest of the process."""
        threading.Thread(target=self._send_heartbeats, name="coordinator-client-heartbeat", daemon=True).start()

    def start_receiving(self) -> None:
        """Receive messages on a thread."""
        self._channel.set_timeout(self._timeout)
        threading.Thread(target=self._receive_all, name="coordinator-client", daemon=True).start()

    def _receive_all(self) -> None:
        reason = CONNECTION_LOST
        try:
            while (message := self._channel.receive()) is not None:
                self.take(message)
        except TimeoutError:
            reason = no_heartbeat(self._timeout)
        except (OSError, FrameError) as error:
            log.debug("process 0: %s", error)
        self._add_failure(0, reason)

    def take(self, message: Message) -> None:
        """Accept one message of the coordinator."""
        if message.kind == "message":
            with self._changed:
                key = str(message.fields["key"]), message.sender
                self._inbox.setdefault(key, deque()).append(message.payload)
                self._changed.notify_all()
        elif message.kind == "failed":
            self._add_failure(int(message.fields["process"]), str(message.fields["reason"]))
        elif message.kind == "stopped":
            self._add_stop(int(message.fields["process"]), str(message.fields["reason"]))

    def _add_failure(self, process: int, reason: str) -> None:
        if self._leaving.is_set():
            return
        with self._changed:
            first = not self._failures
            self._failures.setdefault(process, reason)
            self._changed.notify_all()
        if first and self._on_failure is not None:
            self._on_failure(self.first_failure())

    def _add_stop(self, process: int, reason: str) -> None:
        self._leaving.set()
        self._stop = f"{self.peers[process]} was {reason}"
        if self._on_stop is not None:
            self._on_stop(self._stop)

    def _send_heartbeats(self) -> None:
        while not self._leaving.wait(self._timeout / HEARTBEATS_PER_TIMEOUT):
            try:
                self._channel.send(Message("heartbeat", self.process))
            except OSError:
                return


def connect_to_coordinator(
    address: str,
    process: int,
    count: int,
    *,
    host: str,
    token: str,
    join_timeout: float,
    heartbeat_timeout: float,
    welcome: Callable[[], dict[str, object]],
) -> tuple[CoordinatorClient, dict[str, JsonValue]]:
    """Connect to process 0 and wait until all processes have connected.

    Args:
        address: HOST:PORT of process 0, which starts the coordinator there.
        process: Number of this process.
        count: Number of processes of the attempt.
        host: Name of this machine, for messages.
        token: Identifies the attempt; equal on all its processes.
        join_timeout: Seconds to wait for all processes.
        heartbeat_timeout: Seconds without a heartbeat after which a process counts as failed.
        welcome: Called on process 0 once all have connected; its result is sent to all.

    Returns:
        The connection, and the result of ``welcome`` with the list of peers.

    Raises:
        EngineError: Processes are missing, or this one was rejected; one line with the reason.
    """
    coordinator = Coordinator(address, count, token, heartbeat_timeout) if process == 0 else None
    if coordinator is not None:
        gather = threading.Thread(
            target=coordinator.gather, name="coordinator-gather", args=(join_timeout, welcome), daemon=True
        )
        gather.start()
    channel = _connect(address, process, count, join_timeout)
    client = CoordinatorClient(process, count, channel, coordinator, heartbeat_timeout)
    channel.set_timeout(join_timeout + 30)
    early: list[Message] = []  # another process may fail before all have connected
    try:
        hello = {"count": count, "host": host, "pid": os.getpid(), "token": token}
        channel.send(Message("hello", process, hello))
        client.start_heartbeat()
        answer = channel.receive()
        while answer is not None and answer.kind not in ("welcome", "rejected"):
            early.append(answer)
            answer = channel.receive()
    except (OSError, FrameError) as error:
        answer, reason = None, str(error)
    else:
        reason = "the connection ended"
    if answer is None and process != 0:
        time.sleep(SIGNAL_TIMEOUT)  # a stop of all processes may have reached process 0 first
    if answer is None or answer.kind == "rejected":
        client.close()
        why = (
            f"process 0 at {address} ended before all processes had connected ({reason})"
            if answer is None
            else answer.fields["reason"]
        )
        raise EngineError(f"trainer.distributed: {why}")
    client.peers = [Peer(number, peer["host"], peer["pid"]) for number, peer in enumerate(answer.fields["peers"])]
    for message in early:
        client.take(message)
    client.start_receiving()
    return client, answer.fields


def _connect(address: str, process: int, count: int, join_timeout: float) -> Channel:
    host, port = split_address(address)
    deadline, reason = time.monotonic() + join_timeout, ""
    while True:
        try:
            return Channel(socket.create_connection((host, port), timeout=min(CONNECT_TIMEOUT, join_timeout)))
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > deadline:
            raise EngineError(
                f"trainer.distributed: process {process} of {count} cannot connect to process 0 at {address} "
                f"within {join_timeout:.0f} s: {reason} (hint: check that process 0 runs and that the port is open)"
            )
        time.sleep(CONNECT_INTERVAL)
