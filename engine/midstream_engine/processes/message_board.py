"""The board: what the processes of an attempt tell each other beside their collectives, from any thread.

Process 0 listens at the coordinator's address (:mod:`hub`); every process, it too, holds one connection there as long
as the attempt lasts. So a process that dies is known of at once, and one that is stopped or unreachable after a while,
also where the training loop is stuck in a collective that waits for it.
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
from typing import Any

from midstream_engine.errors import EngineError
from midstream_engine.processes.coordinator import BEATS, Coordinator, split
from midstream_engine.processes.frames import Channel, Message, NotOurs

log = logging.getLogger(__name__)
RETRY = 0.2  # seconds between two tries to reach process 0
PATIENCE = 3600.0  # seconds that a living process may keep the others waiting


class Lost(EngineError):
    """A process that others depend on is gone, or has kept them waiting for too long; the message names it."""


@dataclass(frozen=True)
class Peer:
    """One process of the attempt."""

    process: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


class MessageBoard:
    """One process's place at the board. Messages have a key and a sender; each is taken once."""

    def __init__(self, process: int, count: int, channel: Channel, hub: Coordinator | None, timeout: float):
        self.process, self.count = process, count
        self.peers: list[Peer] = []
        self._channel, self._hub, self._timeout = channel, hub, timeout
        self._inbox: dict[tuple[str, int], deque[bytes]] = {}
        self._gone: dict[int, str] = {}
        self._changed = threading.Condition()
        self._leaving = threading.Event()
        self._when_gone: Callable[[str], None] | None = None

    # --------------------------------------------------------------------------------------------------- messages

    def post(self, key: str, value: bytes, to: int | None = None) -> None:
        """Tell process ``to``, or all with this one, ``value`` under ``key``. Raises Lost where process 0 is gone."""
        try:
            self._channel.send(Message("post", self.process, {"key": key, "to": to}, value))
        except OSError:
            self._is_gone(0, "its connection was lost: it died, or its host did")
            raise Lost(self.obituary()) from None

    def take(self, key: str, sender: int, patience: float = PATIENCE) -> bytes:
        """What ``sender`` has posted under ``key``, once it is here. Lost where it is gone, or alive and later than
        ``patience`` seconds."""
        deadline = time.monotonic() + patience
        with self._changed:
            while not (waiting := self._inbox.get((key, sender))):
                if sender in self._gone or 0 in self._gone:
                    raise Lost(self.obituary())
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Lost(f"{self.peers[sender]} keeps the others waiting for {patience:.0f} s ({key})")
                self._changed.wait(left)
            value = waiting.popleft()
            if not waiting:
                del self._inbox[key, sender]
            return value

    def take_any(self, key: str, patience: float = PATIENCE) -> bytes:
        """What any process has posted under ``key``; where several have, it is the same."""
        deadline = time.monotonic() + patience
        with self._changed:
            while True:
                for sender in range(self.count):
                    if waiting := self._inbox.get((key, sender)):
                        return waiting[0]
                if self._gone:
                    raise Lost(self.obituary())
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Lost(f"no process has said what it knows of ({key}) for {patience:.0f} s")
                self._changed.wait(left)

    def forget(self, prefix: str) -> None:
        """Drop all messages that have not been taken, whose keys begin with ``prefix``."""
        with self._changed:
            for key in [key for key in self._inbox if key[0].startswith(prefix)]:
                del self._inbox[key]

    def exchange(self, key: str, value: bytes, patience: float = PATIENCE) -> list[bytes]:
        """Tell all ``value``; returns what each process told under the same key, by process. A barrier."""
        self.post(key, value)
        deadline = time.monotonic() + patience
        return [self.take(key, sender, max(0.0, deadline - time.monotonic())) for sender in range(self.count)]

    def from_first(self, key: str, value: bytes | None, patience: float = PATIENCE) -> bytes:
        """What process 0 has to say: ``value`` there, and the same everywhere else."""
        if self.process == 0:
            assert value is not None
            self.post(key, value)
        return self.take(key, 0, patience)

    # -------------------------------------------------------------------------------------------- who is still here

    def obituary(self) -> str:
        """One line on the process that was the first to go; empty as long as all are here."""
        with self._changed:
            for process, why in self._gone.items():
                return f"{self.peers[process]} is gone: {why}"
        return ""

    def when_gone(self, call: Callable[[str], None]) -> None:
        """Call ``call`` with the obituary, on a thread of the board, when the first process goes (or has gone)."""
        self._when_gone = call
        if self.obituary():
            call(self.obituary())

    def await_obituary(self, seconds: float) -> str:
        """The obituary, waited for: a collective fails some time before it is known whose fault that is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._gone and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self.obituary()

    def last_words(self, text: str) -> None:
        """What the others are told when this process goes."""
        if self._hub is not None:
            self._hub.farewell(text[:2000])
            return
        try:
            self._channel.send(Message("words", self.process, {"text": text[:2000]}))
        except OSError as error:
            log.debug("nobody is left to be told: %s", error)

    def leave(self, patience: float = 600.0) -> None:
        """The orderly end, when nothing is left to be done together: wait for the others, then go. One of them may be
        gone before this one has heard of it."""
        self._when_gone = None
        try:
            self.exchange("leave", b"", patience)
        except Lost as error:
            log.debug("leaving: %s", error)
        self._leaving.set()
        if self._hub is None:
            try:
                self._channel.send(Message("leave", self.process))
            except OSError as error:  # process 0 has gone already, as it may by now
                log.debug("leaving: %s", error)
        self.close()

    def close(self) -> None:
        """Go at once."""
        self._leaving.set()
        if self._hub is not None:
            self._hub.close()
        self._channel.close()

    # ---------------------------------------------------------------------------------------------------- the thread

    def give_signs_of_life(self) -> None:
        """From now on, whatever the rest of the process is at."""
        threading.Thread(target=self._beat, name="board-beat", daemon=True).start()

    def start(self) -> None:
        """Begin to receive."""
        self._channel.set_timeout(self._timeout)
        threading.Thread(target=self._receive, name="board", daemon=True).start()

    def _receive(self) -> None:
        why = "its connection was lost: it died, or its host did"
        try:
            while (message := self._channel.receive()) is not None:
                if message.kind == "post":
                    with self._changed:
                        key = str(message.fields["key"]), message.sender
                        self._inbox.setdefault(key, deque()).append(message.payload)
                        self._changed.notify_all()
                elif message.kind == "gone":
                    self._is_gone(int(message.fields["process"]), str(message.fields["why"]))
        except TimeoutError:
            why = f"it gave no sign of life for {self._timeout:.0f} s"
        except (OSError, NotOurs) as error:
            log.debug("process 0: %s", error)
        self._is_gone(0, why)

    def _is_gone(self, process: int, why: str) -> None:
        if self._leaving.is_set():
            return
        with self._changed:
            first = not self._gone
            self._gone.setdefault(process, why)
            self._changed.notify_all()
        if first and self._when_gone is not None:
            self._when_gone(self.obituary())

    def _beat(self) -> None:
        while not self._leaving.wait(self._timeout / BEATS):
            try:
                self._channel.send(Message("beat", self.process))
            except OSError:
                return


def join_message_board(
    address: str,
    process: int,
    count: int,
    *,
    host: str,
    token: str,
    joining: float,
    timeout: float,
    welcome: Callable[[], dict[str, object]],
) -> tuple[MessageBoard, dict[str, Any]]:
    """Meet the other processes at ``address`` (HOST:PORT of process 0); returns the board and what ``welcome`` gave on
    process 0. ``token``: what all of them have in common and others have not.

    Raises EngineError, in one line that says what is missing, where not all are there within ``joining`` seconds.
    """
    hub = Coordinator(address, count, token, timeout) if process == 0 else None
    if hub is not None:
        threading.Thread(target=hub.gather, name="hub-gather", args=(joining, welcome), daemon=True).start()
    channel = _connect(address, process, count, joining)
    board = MessageBoard(process, count, channel, hub, timeout)
    channel.set_timeout(joining + 30)
    try:
        hello = {"count": count, "host": host, "pid": os.getpid(), "token": token}
        channel.send(Message("hello", process, hello))
        board.give_signs_of_life()
        answer = channel.receive()
        while answer is not None and answer.kind not in ("welcome", "refused"):
            answer = channel.receive()
    except (OSError, NotOurs) as error:
        answer, reason = None, str(error)
    else:
        reason = "the connection ended"
    if answer is None or answer.kind == "refused":
        board.close()
        why = (
            f"process 0 at {address} ended before all were there ({reason})" if answer is None else answer.fields["why"]
        )
        raise EngineError(f"trainer.distributed: {why}")
    board.peers = [Peer(number, peer["host"], peer["pid"]) for number, peer in enumerate(answer.fields["peers"])]
    board.start()
    return board, answer.fields


def _connect(address: str, process: int, count: int, joining: float) -> Channel:
    host, port = split(address)
    deadline, reason = time.monotonic() + joining, ""
    while True:
        try:
            return Channel(socket.create_connection((host, port), timeout=min(10.0, joining)))
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > deadline:
            raise EngineError(
                f"trainer.distributed: process {process} of {count} cannot reach process 0 at {address} "
                f"(tried for {joining:.0f} s: {reason}); does process 0 run, and is that port open to this host?"
            )
        time.sleep(RETRY)
