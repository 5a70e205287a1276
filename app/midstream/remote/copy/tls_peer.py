"""One host's end of a TLS connection to another host: both show a certificate that was made for this copy alone.

``peer`` is what the operator sends over stdin: ``role`` (listen or dial), ``certificate`` and ``key`` (PEM) of this
end, ``trusted`` (PEM), the one certificate that the other end may show, ``addresses`` and ``port`` to dial, ``ports``
(first, last) to listen on. The key never has a name in a file system: `ssl` reads it from memory through /proc.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, cast

from midstream.remote.copy.object_files import emit
from midstream.remote.copy.stdin_lines import SILENCE, Lines

if TYPE_CHECKING:  # its import costs more than all others together: only who needs it pays
    import ssl

DIAL = 3.0  # seconds that an address may take to answer: a firewall that drops is as good as one that refuses
HANDSHAKE = 5.0  # seconds that a caller has to prove who it is
MEET = 30.0  # seconds after which a listener gives up
CALLERS = 256  # that may be proving who they are; for one more, the oldest that has sent nothing is hung up on
CALLERS_AT_ONCE = 32  # that are accepted before the others are heard again
SOCKET_BUFFER = 4 << 20
KNOCKS = 3


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A path from which ``text`` can be read while the context lasts."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            os.write(descriptor, text.encode())
            yield "/proc/self/fd/{}".format(descriptor)
        finally:
            os.close(descriptor)
    else:  # not Linux: a file that only we can read, gone at once
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
    # The name says nothing: the only certificate that is trusted is the other end's own.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=peer["trusted"])
    with _in_memory(peer["certificate"] + peer["key"]) as path:
        context.load_cert_chain(path)
    return context


def _pinned(sock: ssl.SSLSocket, peer: Dict[str, Any]) -> None:
    import ssl

    if sock.getpeercert(True) != ssl.PEM_cert_to_DER_cert(peer["trusted"]):
        raise ssl.SSLError("the other end shows another certificate")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE * 1000))


# ------------------------------------------------------------------------------------------------ two that meet


def _listener(ports: Optional[Sequence[int]]) -> socket.socket:
    """A socket that listens on a free port of the range; any port where there is none."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    last: Optional[OSError] = None
    for port in range(ports[0], ports[1] + 1) if ports else (0,):
        try:
            return socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=family == socket.AF_INET6)
        except OSError as error:
            last = error
    raise last or OSError("no port to listen on")


class _Callers:
    """Those who have called and have not proven who they are. All are heard at once: silent ones hold nobody up."""

    def __init__(self, listener: socket.socket, peer: Dict[str, Any]):
        self._listener, self._peer = listener, peer
        self._context = _context(peer)
        self._deadlines: Dict[socket.socket, float] = {}  # in the order in which they called
        self._spoken: Set[socket.socket] = set()  # those who have sent something: they have a TLS state, too
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def first_proven(self, seconds: float) -> "ssl.SSLSocket":
        """The first one that shows the right certificate. OSError after ``seconds``."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now >= until:
                raise OSError("nobody called within {:.0f} s who could prove who it is".format(seconds))
            for sock in [each for each, deadline in self._deadlines.items() if deadline <= now]:
                self._drop(sock)
            soonest = min([until, *self._deadlines.values()])
            for key, _ in self._selector.select(soonest - now):
                if key.fileobj is self._listener:
                    self._take_in()
                    continue
                proven = self._hear(cast(socket.socket, key.fileobj))
                if proven is not None:
                    return proven

    def _take_in(self) -> None:
        """Accept those who wait, a few at a time: between them the others are heard."""
        for _ in range(CALLERS_AT_ONCE):
            if len(self._deadlines) >= CALLERS:
                self._drop(
                    next((each for each in self._deadlines if each not in self._spoken), next(iter(self._deadlines)))
                )
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # gone already, or this process has too many files open
                if self._deadlines:
                    self._drop(next(iter(self._deadlines)))
                return
            sock.setblocking(False)
            self._deadlines[sock] = time.monotonic() + HANDSHAKE
            self._selector.register(sock, selectors.EVENT_READ)

    def _hear(self, sock: socket.socket) -> "Optional[ssl.SSLSocket]":
        """One step of the handshake; the socket once it is done."""
        import ssl

        if sock not in self._deadlines:  # made room for another in this round
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
        except OSError:  # ssl.SSLError is one: a scanner, or somebody else's copy
            self._drop(sock)
        else:
            del self._deadlines[sock]
            self._selector.unregister(sock)
            sock.settimeout(HANDSHAKE)
            return cast(ssl.SSLSocket, sock)
        return None

    def _begin(self, raw: socket.socket) -> "ssl.SSLSocket":
        """TLS for one who has sent something."""
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
    """The first caller that shows the right certificate. Others are hung up on."""
    callers = _Callers(listener, peer)
    try:
        return callers.first_proven(MEET)
    finally:
        callers.close()


def _shake_hands(sock: "ssl.SSLSocket", seconds: float) -> None:
    """The handshake within ``seconds`` in all: a socket's own timeout counts anew with each byte."""
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
    """Connected to the first of the addresses where the right certificate is shown, and which one that was."""
    context = _context(peer)
    why: List[str] = []
    for address in peer["addresses"]:
        raw: Optional[socket.socket] = None
        try:
            raw = socket.create_connection((address, peer["port"]), DIAL)
            _tune(raw)
            sock = context.wrap_socket(raw, do_handshake_on_connect=False)
            raw = sock  # closing it closes both
            _shake_hands(sock, HANDSHAKE)
            _pinned(sock, peer)
            return sock, address
        except OSError as error:
            why.append("{}: {}".format(address, error))
            if raw is not None:
                raw.close()
    raise OSError("; ".join(why) or "no address to dial")


def connect(peer: Dict[str, Any]) -> ssl.SSLSocket:
    """A TLS connection with the other end. The listening one says ``listening`` with its ``port`` on stdout."""
    if peer["role"] == "listen":
        with _listener(peer.get("ports")) as listener:
            emit("listening", port=listener.getsockname()[1])
            sock = _accept(listener, peer)
    else:
        sock, _ = _dial(peer)
    sock.settimeout(SILENCE)
    return sock


def reader(sock: ssl.SSLSocket) -> Callable[[memoryview], int]:
    """A function that fills a view with what has come; 0 at the end of the connection."""

    def read_into(view: memoryview) -> int:
        try:
            return sock.recv_into(view)
        except OSError:  # silence, a reset, an end without goodbye: what is missing then is noticed by its frame
            return 0

    return read_into


def part(sock: ssl.SSLSocket) -> None:
    """Say goodbye once everything was sent, and wait until the other end has read it."""
    with contextlib.suppress(OSError):  # it may have hung up already, with everything in its hands
        sock.unwrap()


# ------------------------------------------------------------------------------------------------------ the probe


def addresses() -> List[str]:
    """Addresses of this machine at which others might reach it: where its SSH server was reached, and those that it
    would send from."""
    found: List[str] = []
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4:
        found.append(connection[2].split("%")[0])
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((anywhere, 9))  # sends nothing: it only asks for the route
            found.append(sock.getsockname()[0])
    with contextlib.suppress(OSError):
        for entry in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found.append(str(entry[4][0]))
    loopback = [each for each in found if each.startswith("127.") or each == "::1"]
    return list(dict.fromkeys([each for each in found if each not in loopback] + loopback))


def answer(peer: Dict[str, Any]) -> int:
    """Listen, and send back what the first caller sends. Lines: ``listening`` with ``port`` and ``addresses``."""
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


def probe(peer: Dict[str, Any]) -> Dict[str, Any]:
    """Call the one who answers. Returns ``address`` and ``seconds`` (the shortest round trip), or ``why`` not."""
    try:
        sock, address = _dial(peer)
        with sock:
            seconds = []
            for _ in range(KNOCKS):
                began = time.monotonic()
                sock.sendall(b"knock")
                if sock.recv(64) != b"knock":
                    return {"address": None, "seconds": None, "why": "the connection was closed at once"}
                seconds.append(time.monotonic() - began)
            return {"address": address, "seconds": min(seconds), "why": ""}
    except OSError as error:
        return {"address": None, "seconds": None, "why": str(error)}
