"""TLS connection between two hosts, whose certificates were made for this copy.

``peer`` comes from the app over stdin: ``role`` (listen or dial), ``certificate`` and ``key`` (PEM) of this end,
``trusted`` (PEM), the only certificate accepted from the other end. Of the end that listens, ``ports`` (first, last),
and ``ssh_address``, whether it listens only at the address of its SSH server by which the operator came. Of the end
that dials, ``addresses``, ``port``, ``connect_timeout`` (seconds for one address), ``handshake_timeout`` (seconds), and
``stream``: the number that it sends first where a program listens for several streams (`stream_server`). The key is
never in a file: `ssl` reads it from memory.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple, TypedDict

from midstream_core.json_types import JsonObject, float_of, int_of, optional_list, str_of
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT, StdinLines
from midstream_host.copy.tls_context import check_pinned, context_of, tune
from midstream_host.copy.tls_listener import HANDSHAKE_TIMEOUT, accept, listen, ssh_address
from midstream_host.declarations import program, reads
from midstream_host.object_files import emit

if TYPE_CHECKING:  # its import takes longer than all others together: functions import it when they need it
    import ssl

CONNECT_TIMEOUT = 3.0  # seconds for one address; a firewall may drop packets
PINGS = 3
NUMBER = struct.Struct(">I")  # of a stream: the first bytes of its connection
NumberError = struct.error


def _handshake(sock: "ssl.SSLSocket", seconds: float) -> None:
    """Do the handshake within ``seconds``.

    A socket's timeout would restart with each byte.
    """
    import ssl

    until = time.monotonic() + seconds
    sock.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while True:
            try:
                sock.do_handshake()
                break
            except ssl.SSLWantReadError:
                selector.modify(sock, selectors.EVENT_READ)
            except ssl.SSLWantWriteError:
                selector.modify(sock, selectors.EVENT_WRITE)
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise OSError("the handshake did not end within {:.0f} s".format(seconds))
            selector.select(remaining)
    sock.settimeout(seconds)


def _dial(peer: JsonObject) -> Tuple[ssl.SSLSocket, str]:
    """Connect to the first address with the right certificate.

    Return the socket and the address.
    """
    context = context_of(peer)
    timeout = float_of(peer.get("connect_timeout") or CONNECT_TIMEOUT)
    why: List[str] = []
    for address in map(str_of, optional_list(peer["addresses"])):
        raw: Optional[socket.socket] = None
        try:
            raw = socket.create_connection((address, int_of(peer["port"])), timeout)
            tune(raw)
            sock = context.wrap_socket(raw, do_handshake_on_connect=False)
            raw = sock  # closing it closes both
            _handshake(sock, float_of(peer.get("handshake_timeout") or HANDSHAKE_TIMEOUT))
            check_pinned(sock, peer)
            return sock, address
        except OSError as error:
            why.append("{}: {}".format(address, error))
            if raw is not None:
                raw.close()
    raise OSError("; ".join(why) or "no address to dial")


def connect(peer: JsonObject) -> ssl.SSLSocket:
    """Connect with the other end.

    The listening end reports ``listening`` with its ``port``, one that dials for a numbered stream ``connected``.
    """
    if peer["role"] == "listen":
        with listen(peer) as listener:
            emit("listening", port=listener.getsockname()[1])
            sock = accept(listener, peer)
    else:
        sock, _ = _dial(peer)
        if "stream" in peer:
            sock.sendall(NUMBER.pack(int_of(peer["stream"])))
            emit("connected")
    sock.settimeout(IDLE_TIMEOUT)
    return sock


def reader(sock: ssl.SSLSocket) -> Callable[[memoryview], int]:
    """Return a function that reads into a view; at the connection's end it returns 0."""

    def read_into(view: memoryview) -> int:
        try:
            return sock.recv_into(view)
        except OSError:  # a timeout, a reset, an end without close_notify: the frames show what is missing
            return 0

    return read_into


def end(sock: ssl.SSLSocket) -> None:
    """End the connection; wait until the other end has read everything."""
    with contextlib.suppress(OSError):  # the other end may have read everything and closed already
        sock.unwrap()


# ------------------------------------------------------------------------------------------------------ the probe


def addresses() -> List[str]:
    """Return the addresses at which other hosts may reach this machine.

    The address of its SSH server, and those that it sends from.
    """
    listed: List[str] = []
    if ssh_address():
        listed.append(ssh_address().split("%")[0])
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((anywhere, 9))  # sends nothing: it looks up the route
            listed.append(sock.getsockname()[0])
    with contextlib.suppress(OSError):
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            listed.append(str(entry[4][0]))
    loopback = [address for address in listed if address.startswith("127.") or address == "::1"]
    return list(dict.fromkeys([address for address in listed if address not in loopback] + loopback))


@program
def answer(peer: JsonObject) -> int:
    """Listen, and echo what the authenticated peer sends.

    A program. Lines: ``listening`` with ``port`` and ``addresses``, then ``done`` or ``problem``.
    """
    StdinLines()
    try:
        with listen(peer) as listener:
            emit("listening", port=listener.getsockname()[1], addresses=addresses())
            sock = accept(listener, peer)
        with sock:
            while True:
                data = sock.recv(64)
                if not data:
                    break
                sock.sendall(data)
    except OSError as error:
        emit("problem", kind="system", message=str(error))
        return 1
    emit("done")
    return 0


class ConnectionProbe(TypedDict):
    """Result of `probe`: an address and its round trip, or why none answered.

    The round trip is the shortest, in seconds.

    A dictionary, because direct streams begin with this module and dataclasses take time to import.
    """

    address: Optional[str]
    seconds: Optional[float]
    why: str


@reads()
def probe(peer: JsonObject) -> ConnectionProbe:
    """Connect to the listening peer and measure the round trip."""
    try:
        sock, address = _dial(peer)
        with sock:
            seconds: List[float] = []
            for _ in range(PINGS):
                began = time.monotonic()
                sock.sendall(b"ping")
                if sock.recv(64) != b"ping":
                    return ConnectionProbe(address=None, seconds=None, why="the other end closed the connection")
                seconds.append(time.monotonic() - began)
            return ConnectionProbe(address=address, seconds=min(seconds), why="")
    except OSError as error:
        return ConnectionProbe(address=None, seconds=None, why=str(error))
