"""TLS connection between two hosts, whose certificates were made for this copy.

``peer`` comes from the app over stdin: ``role`` (listen or dial), ``certificate`` and ``key`` (PEM) of this end,
``trusted`` (PEM), the only certificate accepted from the other end, ``addresses`` and ``port`` to dial, ``ports``
(first, last) to listen on. The key is never in a file: `ssl` reads it from memory through /proc.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypedDict,
    cast,
)

from midstream.remote.copy.stdin_lines import IDLE_TIMEOUT, Lines
from midstream.remote.declarations import program, reads
from midstream.remote.files.object_files import emit

if TYPE_CHECKING:  # its import takes longer than all others together: functions import it when they need it
    import ssl

CONNECT_TIMEOUT = 3.0  # seconds for one address; a firewall may drop packets
HANDSHAKE_TIMEOUT = 5.0  # seconds
ACCEPT_TIMEOUT = 30.0  # seconds until a listener gives up
MAX_CALLERS = 256  # unauthenticated connections; for one more, the oldest that has sent nothing is closed
ACCEPT_BATCH = 32  # connections accepted before the others are read again
PINGS = 3


@contextlib.contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """Context manager: a path from which ``text`` can be read."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            os.write(descriptor, text.encode())
            yield "/proc/self/fd/{}".format(descriptor)
        finally:
            os.close(descriptor)
    else:  # not Linux: a private file, deleted when the context ends
        import tempfile

        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            yield file.name


def _context(peer: Dict[str, Any]) -> ssl.SSLContext:
    import ssl

    server = peer["role"] == "listen"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Names prove nothing here: the only trusted certificate is the one of the other end.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=peer["trusted"])
    with _in_memory(peer["certificate"] + peer["key"]) as path:
        context.load_cert_chain(path)
    return context


def _pinned(sock: ssl.SSLSocket, peer: Dict[str, Any]) -> None:
    import ssl

    if sock.getpeercert(True) != ssl.PEM_cert_to_DER_cert(peer["trusted"]):
        raise ssl.SSLError("the other end has another certificate")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(IDLE_TIMEOUT * 1000))


# ------------------------------------------------------------------------------------------------ connect


def _listener(ports: Optional[Sequence[int]]) -> socket.socket:
    """Listen on a free port of the range, or on any port where ``ports`` is None."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    last: Optional[OSError] = None
    for port in range(ports[0], ports[1] + 1) if ports else (0,):
        try:
            return socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=family == socket.AF_INET6)
        except OSError as error:
            last = error
    raise last or OSError("no port to listen on")


class _Callers:
    """Connections that are not authenticated yet.

    All are read in turn: one that sends nothing delays no other.
    """

    def __init__(self, listener: socket.socket, peer: Dict[str, Any]) -> None:
        self._listener, self._peer = listener, peer
        self._context = _context(peer)
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
            for sock in [each for each, deadline in self._deadlines.items() if deadline <= now]:
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
                    next((each for each in self._deadlines if each not in self._spoken), next(iter(self._deadlines)))
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
            _pinned(cast(ssl.SSLSocket, sock), self._peer)
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
            _tune(raw)
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


def _accept(listener: socket.socket, peer: Dict[str, Any]) -> "ssl.SSLSocket":
    """Return the first connection with the right certificate; close the others."""
    callers = _Callers(listener, peer)
    try:
        return callers.first_authenticated(ACCEPT_TIMEOUT)
    finally:
        callers.close()


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
            left = until - time.monotonic()
            if left <= 0:
                raise OSError("the handshake did not end within {:.0f} s".format(seconds))
            selector.select(left)
    sock.settimeout(seconds)


def _dial(peer: Dict[str, Any]) -> Tuple[ssl.SSLSocket, str]:
    """Connect to the first address with the right certificate.

    Return the socket and the address.
    """
    context = _context(peer)
    why: List[str] = []
    for address in peer["addresses"]:
        raw: Optional[socket.socket] = None
        try:
            raw = socket.create_connection((address, peer["port"]), CONNECT_TIMEOUT)
            _tune(raw)
            sock = context.wrap_socket(raw, do_handshake_on_connect=False)
            raw = sock  # closing it closes both
            _handshake(sock, HANDSHAKE_TIMEOUT)
            _pinned(sock, peer)
            return sock, address
        except OSError as error:
            why.append("{}: {}".format(address, error))
            if raw is not None:
                raw.close()
    raise OSError("; ".join(why) or "no address to dial")


def connect(peer: Dict[str, Any]) -> ssl.SSLSocket:
    """Connect with the other end.

    The listening end reports ``listening`` with its ``port``.
    """
    if peer["role"] == "listen":
        with _listener(peer.get("ports")) as listener:
            emit("listening", port=listener.getsockname()[1])
            sock = _accept(listener, peer)
    else:
        sock, _ = _dial(peer)
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


def part(sock: ssl.SSLSocket) -> None:
    """End the connection; wait until the other end has read everything."""
    with contextlib.suppress(OSError):  # the other end may have read everything and closed already
        sock.unwrap()


# ------------------------------------------------------------------------------------------------------ the probe


def addresses() -> List[str]:
    """Return the addresses at which other hosts may reach this machine.

    The address of its SSH server, and those that it sends from.
    """
    found: List[str] = []
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        found.append(connection[2].split("%")[0])
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((anywhere, 9))  # sends nothing: it looks up the route
            found.append(sock.getsockname()[0])
    with contextlib.suppress(OSError):
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found.append(str(entry[4][0]))
    loopback = [each for each in found if each.startswith("127.") or each == "::1"]
    return list(dict.fromkeys([each for each in found if each not in loopback] + loopback))


@program
def answer(peer: Dict[str, Any]) -> int:
    """Listen, and echo what the authenticated peer sends.

    A program. Lines: ``listening`` with ``port`` and ``addresses``, then ``done`` or ``problem``.
    """
    Lines()
    try:
        with _listener(peer.get("ports")) as listener:
            emit("listening", port=listener.getsockname()[1], addresses=addresses())
            sock = _accept(listener, peer)
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
def probe(peer: Dict[str, Any]) -> ConnectionProbe:
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
