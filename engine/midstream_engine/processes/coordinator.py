"""The hub: process 0 passes on what the processes of an attempt tell each other, and says who is gone."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from midstream_engine.errors import EngineError
from midstream_engine.processes.frames import Channel, Message, NotOurs

log = logging.getLogger(__name__)
BEATS = 6  # signs of life in the time after which a silent process is given up


class Coordinator:
    """Listens, lets ``count`` processes in, and passes messages on until all have left.

    A message goes to the process that its field ``to`` names, or to all, its sender too. Connections are accepted for
    one attempt: what does not say hello as a process of it is turned away.
    """

    def __init__(self, address: str, count: int, token: str, timeout: float):
        self._count, self._token, self._timeout = count, token, timeout
        self._server = listen(address)
        self._channels: dict[int, Channel] = {}
        self._peers: dict[int, dict[str, object]] = {}
        self._gone: set[int] = set()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._start(self._accept, "hub")

    def _start(self, work: Callable[..., None], name: str, *arguments: object) -> None:
        threading.Thread(target=work, name=name, args=arguments, daemon=True).start()

    def gather(self, timeout: float, welcome: Callable[[], dict[str, object]]) -> None:
        """Wait until all have said hello, and answer with ``welcome()`` and a list of all. Where some have not within
        ``timeout`` seconds, the others are refused, and told which."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while len(self._channels) < self._count and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            missing = sorted(set(range(self._count)) - self._channels.keys())
        if missing:
            names, many = ", ".join(map(str, missing)), len(missing) > 1
            why = (
                f"{'processes' if many else 'process'} {names} of {self._count} did not arrive within {timeout:.0f} s; "
                f"look at what became of {'them' if many else 'it'}"
            )
            self._pass_on(Message("refused", 0, {"why": why}))
            return
        peers = [self._peers[process] for process in range(self._count)]
        self._pass_on(Message("welcome", 0, {**welcome(), "peers": peers}))
        self._start(self._beat, "hub-beat")

    def farewell(self, words: str) -> None:
        """Process 0 is about to go: the others are told why, before their connections end."""
        self._drop(0, words)

    def close(self) -> None:
        """Turn everyone away."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who waits for a connection
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
            self._start(self._serve, "hub-connection", Channel(connection))

    def _serve(self, channel: Channel) -> None:
        process = self._admit(channel)
        if process is None:
            channel.close()
            return
        why = "its connection was lost: it died, or its host did"
        words = ""
        try:
            while (message := channel.receive()) is not None:
                if message.kind == "words":
                    words = str(message.fields.get("text", ""))
                elif message.kind == "leave":
                    return
                elif message.kind != "beat":
                    self._pass_on(message)
        except TimeoutError:
            why = f"it gave no sign of life for {self._timeout:.0f} s"
        except (OSError, NotOurs) as error:
            log.debug("process %d: %s", process, error)
        if not self._closed.is_set():
            self._drop(process, words or why)

    def _admit(self, channel: Channel) -> int | None:
        try:
            hello = channel.receive()
        except (OSError, NotOurs):
            return None
        if hello is None or hello.kind != "hello":
            return None
        process, refusal = hello.sender, ""
        with self._changed:
            if hello.fields.get("token") != self._token:
                refusal = f"it belongs to another attempt than the {self._token!r} that process 0 is at"
            elif hello.fields.get("count") != self._count:
                refusal = f"it was told of {hello.fields.get('count')} processes, process 0 of {self._count}"
            elif not 0 <= process < self._count or process in self._channels:
                refusal = f"there is a process {process} already" if process in self._channels else "it is one too many"
            else:
                self._channels[process] = channel
                self._peers[process] = {"host": hello.fields.get("host", ""), "pid": hello.fields.get("pid", 0)}
                self._changed.notify_all()
        if refusal:
            self._send(channel, Message("refused", 0, {"why": f"process {process} was turned away: {refusal}"}))
            return None
        return process

    def _pass_on(self, message: Message) -> None:
        to = message.fields.get("to")
        for process, channel in list(self._channels.items()):
            if to in (None, process) and process not in self._gone and not self._send(channel, message):
                self._drop(process, "its connection was lost: it died, or its host did")

    def _send(self, channel: Channel, message: Message) -> bool:
        try:
            channel.send(message)
        except OSError:
            return False
        return True

    def _drop(self, process: int, why: str) -> None:
        with self._changed:
            if process in self._gone:
                return
            self._gone.add(process)
        self._pass_on(Message("gone", 0, {"process": process, "why": why}))

    def _beat(self) -> None:
        while not self._closed.wait(self._timeout / BEATS):
            self._pass_on(Message("beat"))


def listen(address: str) -> socket.socket:
    """A listening socket at HOST:PORT, or on all interfaces where the host's address is not one of this machine (it may
    be translated). EngineError where the port is taken."""
    host, port = split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        try:
            return socket.create_server(found[0][4][:2], family=found[0][0], backlog=512)
        except OSError as error:
            if error.errno != 99:  # EADDRNOTAVAIL
                raise
            return socket.create_server(("", port), backlog=512)
    except OSError as error:
        raise EngineError(
            f"trainer.distributed.coordinator_address: process 0 cannot listen at {address}: {error.strerror or error}"
        ) from None


def split(address: str) -> tuple[str, int]:
    """``HOST:PORT``, an IPv6 host in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
