"""Coordinator in a thread of process 0: admission, messages, reports of failures.

jax has a coordination service of its own. The service is started too, for collectives, but does not replace this
module. What jax 0.10.2 did on loopback, with two processes and a heartbeat timeout of 10 s:

- Rendezvous: where a process was missing at ``init_timeout``, or process 0 did not listen, every other process ended
  with SIGABRT and a C++ stack trace. ``connect()`` did not raise, so no process could report what is missing.
- Failure: a process that was killed was noticed after the heartbeat timeout, 10 s later; a connection that closes is
  noticed here within milliseconds. The survivors then ended with SIGABRT and no reason. ``missed_heartbeat_callback``,
  which is meant to replace that, ended them with ``std::bad_cast`` when it was implemented in Python.
- Recoverable tasks (``jax_enable_recoverability``) avoid that end, but then the survivors got no report at all:
  ``get_live_nodes`` returns only once all live processes call it. The end of process 0 still ended all others.
- The key-value store works (8 MB in 0.25 s, a barrier in 1 ms). A blocking read does not end when its writer fails,
  though, and keys stay until they are deleted, while every step sends messages. The
  connection that is open for failures anyway carries messages too.

Therefore this module has rendezvous, failures and messages, and jax's service, whose heartbeat timeout is set far
longer than the one here, only starts the collectives.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable

from midstream_core.attempt.errors import EngineError
from midstream_engine.processes.frames import Channel, FrameError, Message

log = logging.getLogger(__name__)
HEARTBEATS_PER_TIMEOUT = 6
STOP_TIMEOUT = 0.7  # seconds for the other processes to record a stop; jax aborts them when process 0 exits
# Seconds for a stop of all processes to reach each: they get their signals one after another, and the first to end has
# not failed. A process that still connects then ends by its own signal, and not because of the first.
SIGNAL_TIMEOUT = 5.0
CONNECTION_LOST = "connection lost: the process or its host ended"


def no_heartbeat(seconds: float) -> str:
    """Return the reason of a failure by heartbeat timeout."""
    return f"no heartbeat for {seconds:.0f} s"


class Coordinator:
    """Admits ``count`` processes and forwards their messages until all have left.

    A message is delivered to the process in its field ``to``, or to all including its sender. Connections are accepted
    for one attempt: one that does not send a valid ``hello`` for it is rejected.
    """

    def __init__(self, address: str, count: int, token: str, heartbeat_timeout: float) -> None:
        self._count, self._token, self._timeout = count, token, heartbeat_timeout
        self._server = listen(address)
        self._channels: dict[int, Channel] = {}
        self._peers: dict[int, dict[str, object]] = {}
        self._failed: dict[int, str] = {}  # with the reason
        self._refusal = ""  # why the processes cannot start together; one that connects during this time gets it, too
        self._disconnected: set[int] = set()
        self._stopping = False
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._start(self._accept, "coordinator")

    def _start(self, work: Callable[..., None], name: str, *arguments: object) -> None:
        threading.Thread(target=work, name=name, args=arguments, daemon=True).start()

    def gather(self, timeout: float, welcome: Callable[[], dict[str, object]]) -> None:
        """Wait for all processes, then answer each with ``welcome()`` and the list of all.

        Where some are missing after ``timeout`` seconds, or one fails before, the others are rejected with a message
        that names them.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while (
                not self._failed
                and len(self._channels) < self._count
                and (remaining := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(remaining)
            failed = bool(self._failed)
        if failed:
            self._closed.wait(SIGNAL_TIMEOUT)
        with self._changed:
            self._refusal = self._failed_early() or self._missing(timeout)
        if self._refusal:
            self._refuse_all()
            return
        peers = [self._peers[process] for process in range(self._count)]
        self._forward(Message("welcome", 0, {**welcome(), "peers": peers}))
        self._start(self._send_heartbeats, "coordinator-heartbeat")

    def _refuse_all(self) -> None:
        """Send to all the reason why they cannot start together.

        Process 0 gets the reason last, because it closes the coordinator then.
        """
        message = Message("rejected", 0, {"reason": self._refusal})
        for process, channel in sorted(self._channels.items(), reverse=True):
            if process not in self._failed:
                self._send(channel, message)

    def _failed_early(self) -> str:
        """Return why the processes cannot start together, if one has failed."""
        for process, reason in self._failed.items():
            peer = self._peers[process]
            named = f"process {process} ({peer['host']}, pid {peer['pid']})"
            return f"{named} failed before all had connected: {reason}"
        return ""

    def _missing(self, timeout: float) -> str:
        """Return which processes did not connect in time; empty if all have."""
        missing = sorted(set(range(self._count)) - self._channels.keys())
        if not missing:
            return ""
        names, many = ", ".join(map(str, missing)), len(missing) > 1
        return (
            f"{'processes' if many else 'process'} {names} of {self._count} did not connect within {timeout:.0f} s "
            f"(hint: read the log of {'each' if many else 'it'})"
        )

    def fail(self, reason: str) -> None:
        """Report the failure of process 0 to the others before their connections end."""
        self._drop(0, reason)

    def stop(self, process: int, reason: str) -> None:
        """Report to the others that ``process`` stops the attempt.

        Process 0 receives the report last, once the rest have disconnected.
        """
        self._stopping = True
        message = Message("stopped", 0, {"process": process, "reason": reason})
        others = set(self._channels) - {0, process}
        for other in others:
            self._send(self._channels[other], message)
        with self._changed:
            self._changed.wait_for(lambda: others <= self._disconnected, STOP_TIMEOUT)
        if process != 0:
            self._send(self._channels[0], message)

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the thread in accept()
        self._server.close()
        for channel in list(self._channels.values()):
            channel.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if self._closed.is_set():
                connection.close()
                return
            connection.settimeout(self._timeout)
            self._start(self._serve, "coordinator-connection", Channel(connection))

    def _serve(self, channel: Channel) -> None:
        process = self._admit(channel)
        if process is None:
            channel.close()
            return
        reason, reported = CONNECTION_LOST, ""
        try:
            while (message := channel.receive()) is not None:
                if message.kind == "failure":
                    reported = str(message.fields.get("reason", ""))
                elif message.kind == "stop":
                    self.stop(process, str(message.fields.get("reason", "")))
                elif message.kind == "leave":
                    return
                elif message.kind != "heartbeat":
                    self._forward(message)
        except TimeoutError:
            reason = no_heartbeat(self._timeout)
        except (OSError, FrameError) as error:
            log.debug("process %d: %s", process, error)
        finally:
            with self._changed:
                self._disconnected.add(process)
                self._changed.notify_all()
        if not self._closed.is_set() and not self._stopping:
            self._drop(process, reported or reason)

    def _admit(self, channel: Channel) -> int | None:
        try:
            hello = channel.receive()
        except (OSError, FrameError):
            return None
        if hello is None or hello.kind != "hello":
            return None
        process, rejection, refusal = hello.sender, "", ""
        with self._changed:
            refusal = self._refusal
            if hello.fields.get("token") != self._token:
                rejection = f"it belongs to another attempt than {self._token!r}, that of process 0"
            elif hello.fields.get("count") != self._count:
                rejection = f"it expects {hello.fields.get('count')} processes, process 0 expects {self._count}"
            elif process in self._channels:
                rejection = f"process {process} is connected already"
            elif not 0 <= process < self._count:
                rejection = f"there are {self._count} processes, numbered from 0"
            elif not refusal:
                self._channels[process] = channel
                self._peers[process] = {"host": hello.fields.get("host", ""), "pid": hello.fields.get("pid", 0)}
                self._changed.notify_all()
        if rejection or refusal:
            reason = f"process {process} was rejected: {rejection}" if rejection else refusal
            self._send(channel, Message("rejected", 0, {"reason": reason}))
            return None
        return process

    def _forward(self, message: Message) -> None:
        to = message.fields.get("to")
        for process, channel in list(self._channels.items()):
            if to in (None, process) and process not in self._failed and not self._send(channel, message):
                self._drop(process, CONNECTION_LOST)

    def _send(self, channel: Channel, message: Message) -> bool:
        try:
            channel.send(message)
        except OSError:
            return False
        return True

    def _drop(self, process: int, reason: str) -> None:
        with self._changed:
            if process in self._failed:
                return
            self._failed[process] = reason
            self._changed.notify_all()
        self._forward(Message("failed", 0, {"process": process, "reason": reason}))

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(self._timeout / HEARTBEATS_PER_TIMEOUT):
            self._forward(Message("heartbeat"))


def listen(address: str) -> socket.socket:
    """Open a listening socket at HOST:PORT.

    Listens on all interfaces where the host's address is not one of this machine (it may be translated). Raises
    EngineError where the port is in use.
    """
    host, port = split_address(address)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        try:
            return socket.create_server(addresses[0][4][:2], family=addresses[0][0], backlog=512)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            return socket.create_server(("", port), backlog=512)
    except OSError as error:
        raise EngineError(
            f"trainer.distributed.coordinator_address: process 0 cannot listen at {address}: {error.strerror or error}"
        ) from None


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
