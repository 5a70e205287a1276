"""Channels to one host, over more connections where sessions are limited.

The host's server may limit the sessions of a connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import paramiko

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.ssh.connection import Connection
from midstream.hosts.ssh.process import connection_lost
from midstream.hosts.ssh.transport import CHANNEL_TIMEOUT

MAX_EXTRA_CONNECTIONS = 8  # with MaxSessions 1, nine commands can run concurrently
SESSION_TIMEOUT = 30.0  # seconds to wait for a free session
POLL_INTERVAL = 0.1  # seconds
# paramiko stores one reason for all threads: of two concurrent refusals, the second has only this text.
CONCURRENT_REFUSAL = "Unable to open channel."


class Channels:
    """Sessions over ``first``, and over further connections when it has no more.

    A further connection is opened once the server refuses one more session (MaxSessions).

    All methods are thread-safe.
    """

    def __init__(self, name: str, first: Connection, connect: Callable[[], Connection]) -> None:
        self._name = name
        self._first = first
        self._connect = connect
        self._extra: list[Connection] = []
        self._lock = threading.Lock()  # for the list
        self._connecting = threading.Lock()
        self._closed = False

    def open(self, window: int | None = None) -> paramiko.Channel:
        """Open a session.

        Raises:
            HostError: The server refuses all sessions.
            ConnectionLostError: The server does not answer.
        """
        deadline = time.monotonic() + SESSION_TIMEOUT
        while True:
            tried = (self._first, *self._active())
            for connection in tried:
                channel = self._try(connection, window)
                if channel is not None:
                    return channel
            channel = self._over_new_connection(tried, window)
            if channel is not None:
                return channel
            if time.monotonic() >= deadline:
                raise self._refused()
            time.sleep(POLL_INTERVAL)

    def _try(self, connection: Connection, window: int | None) -> paramiko.Channel | None:
        """Open a session over a connection, None if the server refuses it."""
        if connection is self._first and not connection.active:
            raise connection_lost(self._name, "the connection is closed")
        try:
            return connection.transport.open_session(window_size=window, timeout=CHANNEL_TIMEOUT)
        except paramiko.ChannelException:  # a refusal, as opposed to no answer
            return None
        except (paramiko.SSHException, EOFError, OSError) as error:
            lost = not connection.active or not isinstance(error, paramiko.SSHException)
            if lost and connection is not self._first:
                connection.close()
                return None  # it is lost; whether the host is, the first one shows
            if connection.active and str(error) == CONCURRENT_REFUSAL:
                return None
            raise connection_lost(self._name, "no answer to the request for a channel") from error

    def _over_new_connection(self, tried: tuple[Connection, ...], window: int | None) -> paramiko.Channel | None:
        """Open a session over a connection that was not ``tried``, or return None.

        None: there are `MAX_EXTRA_CONNECTIONS` already, or the connection was lost at once.
        """
        with self._connecting:
            for connection in self._active():
                if connection not in tried:  # opened by another thread while this one waited
                    channel = self._try(connection, window)
                    if channel is not None:
                        return channel
            if len(self._active()) >= MAX_EXTRA_CONNECTIONS:
                return None
            try:
                connection = self._connect()
            except ConnectionLostError:
                raise
            except HostError as error:
                raise HostError(
                    f"{self._name}: its SSH server refuses a channel, and a further connection: {error.message}",
                    "raise MaxSessions of its sshd",
                ) from error
            try:
                channel = self._try(connection, window)  # before other threads take all of its sessions
            except BaseException:
                connection.close()
                raise
            with self._lock:
                closed = self._closed
                if not closed:
                    self._extra.append(connection)
            if closed:
                connection.close()
                raise connection_lost(self._name, "the connection is closed")
        if channel is None and connection.active:
            raise self._refused()
        return channel

    def _refused(self) -> HostError:
        return HostError(f"{self._name}: its SSH server refuses a channel", "raise MaxSessions of its sshd")

    def _active(self) -> list[Connection]:
        with self._lock:
            self._extra = [connection for connection in self._extra if connection.active]
            return list(self._extra)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            self._closed = True
            extra, self._extra = self._extra, []
        for connection in (self._first, *extra):
            with contextlib.suppress(OSError, EOFError):  # the server may be closing it
                connection.close()
