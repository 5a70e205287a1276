"""Listening end of a copy's TLS connections.

Only callers with the right certificate are accepted.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Dict, Optional, Set, cast

from midstream_core.json_types import JsonObject, int_of, optional_list
from midstream_host.copy.tls_context import check_pinned, context_of, tune

if TYPE_CHECKING:  # its import takes longer than all others together: functions import it when they need it
    import ssl

HANDSHAKE_TIMEOUT = 5.0  # seconds
ACCEPT_TIMEOUT = 30.0  # seconds until a listener gives up
MAX_CALLERS = 256  # unauthenticated connections; for one more, the oldest that has sent nothing is closed
ACCEPT_BATCH = 32  # connections accepted before the others are read again


def ssh_address() -> str:
    """Return the address of the SSH server by which the operator came.

    Empty if it is not known.
    """
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return connection[2] if len(connection) == 4 else ""


def listen(peer: JsonObject) -> socket.socket:
    """Listen on a free port, one of the peer's ``ports`` where it names any."""
    ports = [int_of(port) for port in optional_list(peer.get("ports"))]
    address = ssh_address() if peer.get("ssh_address") else ""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    last: Optional[OSError] = None
    for port in range(ports[0], ports[1] + 1) if ports else (0,):
        try:
            return socket.create_server((address, port), family=family, backlog=64, dualstack_ipv6=both)
        except OSError as error:
            last = error
    raise last or OSError("no port to listen on")


class Callers:
    """Connections that are not authenticated yet.

    All are read in turn: one that sends nothing delays no other.
    """

    def __init__(self, listener: socket.socket, peer: JsonObject) -> None:
        self._listener, self._peer = listener, peer
        self._context = context_of(peer)
        self._deadlines: Dict[socket.socket, float] = {}  # in the order of arrival
        self._spoken: Set[socket.socket] = set()  # those that have sent something: they have a TLS state
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def first_authenticated(self, seconds: float) -> "ssl.SSLSocket":
        """Return the first connection with the right certificate.

        Raises OSError after ``seconds``.
        """
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now >= until:
                raise OSError("no connection with the right certificate within {:.0f} s".format(seconds))
            for sock in [connection for connection, deadline in self._deadlines.items() if deadline <= now]:
                self._drop(sock)
            soonest = min([until, *self._deadlines.values()])
            for key, _ in self._selector.select(soonest - now):
                if key.fileobj is self._listener:
                    self._accept()
                    continue
                authenticated = self._handshake_step(cast(socket.socket, key.fileobj))
                if authenticated is not None:
                    return authenticated

    def _accept(self) -> None:
        """Accept at most `ACCEPT_BATCH` waiting connections."""
        for _ in range(ACCEPT_BATCH):
            if len(self._deadlines) >= MAX_CALLERS:
                self._drop(
                    next(
                        (sock for sock in self._deadlines if sock not in self._spoken),
                        next(iter(self._deadlines)),
                    )
                )
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # closed already, or this process has too many open files
                if self._deadlines:
                    self._drop(next(iter(self._deadlines)))
                return
            sock.setblocking(False)
            self._deadlines[sock] = time.monotonic() + HANDSHAKE_TIMEOUT
            self._selector.register(sock, selectors.EVENT_READ)

    def _handshake_step(self, sock: socket.socket) -> "Optional[ssl.SSLSocket]":
        """Do one step of the handshake; return the socket once it is complete."""
        import ssl

        if sock not in self._deadlines:  # dropped in this round
            return None
        try:
            if sock not in self._spoken:
                sock = self._begin(sock)
            cast(ssl.SSLSocket, sock).do_handshake()
            check_pinned(cast(ssl.SSLSocket, sock), self._peer)
        except ssl.SSLWantReadError:
            self._selector.modify(sock, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(sock, selectors.EVENT_WRITE)
        except OSError:  # includes ssl.SSLError: a port scanner, or another copy
            self._drop(sock)
        else:
            del self._deadlines[sock]
            self._selector.unregister(sock)
            sock.settimeout(HANDSHAKE_TIMEOUT)
            return cast(ssl.SSLSocket, sock)
        return None

    def _begin(self, raw: socket.socket) -> "ssl.SSLSocket":
        """Start TLS on a connection that has sent something."""
        self._selector.unregister(raw)
        deadline = self._deadlines.pop(raw)
        try:
            tune(raw)
            sock = self._context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except OSError:
            raw.close()
            raise
        self._deadlines[sock] = deadline
        self._spoken.add(sock)
        self._selector.register(sock, selectors.EVENT_READ)
        return sock

    def _drop(self, sock: socket.socket) -> None:
        if self._deadlines.pop(sock, None) is not None:
            self._selector.unregister(sock)
        self._spoken.discard(sock)
        sock.close()

    def close(self) -> None:
        for sock in list(self._deadlines):
            self._drop(sock)
        self._selector.close()


def accept(listener: socket.socket, peer: JsonObject) -> "ssl.SSLSocket":
    """Return the first connection with the right certificate; close the others."""
    callers = Callers(listener, peer)
    try:
        return callers.first_authenticated(ACCEPT_TIMEOUT)
    finally:
        callers.close()
