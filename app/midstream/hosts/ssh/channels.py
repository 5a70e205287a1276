"""Channels to one machine: over its connection, and over further ones where the server allows few sessions in each."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import paramiko

from midstream.errors import HostError, LostContact
from midstream.hosts.ssh.connection import Connection
from midstream.hosts.ssh.process import lost_contact
from midstream.hosts.ssh.transport import CHANNEL_TIMEOUT

MOST_FURTHER = 8  # connections: with MaxSessions 1, so many commands and one more run at once
FREE_TIMEOUT = 30.0  # seconds until a command of ours has ended, where all connections are in use
POLL_INTERVAL = 0.1
# paramiko keeps one reason for all threads: of two that are refused at once, the second finds none.
REFUSED_BESIDE_ANOTHER = "Unable to open channel."


class Channels:
    """Opens sessions over ``first``, and over what ``connect`` opens where the server refuses one more (MaxSessions).
    Threads may open at once."""

    def __init__(self, name: str, first: Connection, connect: Callable[[], Connection]):
        self._name = name
        self._first = first
        self._connect = connect
        self._further: list[Connection] = []
        self._lock = threading.Lock()  # for the list
        self._connecting = threading.Lock()
        self._closed = False

    def open(self, window: int | None = None) -> paramiko.Channel:
        """A session. HostError where the server refuses all, LostContact where it does not answer."""
        deadline = time.monotonic() + FREE_TIMEOUT
        while True:
            for connection in (self._first, *self._living()):
                channel = self._try(connection, window)
                if channel is not None:
                    return channel
            channel = self._over_a_new_one(window)
            if channel is not None:
                return channel
            if time.monotonic() >= deadline:
                raise self._refused()
            time.sleep(POLL_INTERVAL)

    def _try(self, connection: Connection, window: int | None) -> paramiko.Channel | None:
        """A session over a connection; None where there is no room in it."""
        if connection is self._first and not connection.active:
            raise lost_contact(self._name, "the connection is closed")
        try:
            return connection.transport.open_session(window_size=window, timeout=CHANNEL_TIMEOUT)
        except paramiko.ChannelException:  # the server's own refusal, as opposed to its silence
            return None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if connection is not self._first and not connection.active:
                return None
            if connection.active and str(error) == REFUSED_BESIDE_ANOTHER:
                return None
            raise lost_contact(self._name, "no answer to the request for a channel") from error

    def _over_a_new_one(self, window: int | None) -> paramiko.Channel | None:
        """A session over a further connection; None where there are as many as there may be."""
        with self._connecting:
            if len(self._living()) >= MOST_FURTHER:
                return None
            try:
                connection = self._connect()
            except LostContact:
                raise
            except HostError as error:
                raise HostError(
                    f"{self._name}: its SSH server refuses a channel, and a further connection: {error.message}",
                    "raise MaxSessions of its sshd",
                ) from error
            with self._lock:
                if not self._closed:
                    self._further.append(connection)
            if self._closed:
                connection.close()
                raise lost_contact(self._name, "the connection is closed")
            channel = self._try(connection, window)
        if channel is None:
            raise self._refused()
        return channel

    def _refused(self) -> HostError:
        return HostError(f"{self._name}: its SSH server refuses a channel", "raise MaxSessions of its sshd")

    def _living(self) -> list[Connection]:
        with self._lock:
            self._further = [connection for connection in self._further if connection.active]
            return list(self._further)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            self._closed = True
            further, self._further = self._further, []
        for connection in (self._first, *further):
            with contextlib.suppress(OSError, EOFError):  # it may be closing by itself
                connection.close()
