"""One host's end of a TLS connection to another host: both show a certificate that was made for this copy alone.

``peer`` is what the operator sends over stdin: ``role`` (listen or dial), ``certificate`` and ``key`` (PEM) of this
end, ``trusted`` (PEM), the one certificate that the other end may show, ``addresses`` and ``port`` to dial, ``ports``
(first, last) to listen on. The key never has a name in a file system: `ssl` reads it from memory through /proc.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.files import emit
from midstream.remote.lines import SILENCE, Lines

if TYPE_CHECKING:  # its import costs more than all others together: only who needs it pays
    import ssl

DIAL = 3.0  # seconds that an address may take to answer: a firewall that drops is as good as one that refuses
HANDSHAKE = 5.0
MEET = 30.0  # seconds after which a listener gives up
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


def _accept(listener: socket.socket, peer: Dict[str, Any]) -> ssl.SSLSocket:
    """The first caller that shows the right certificate. Others are hung up on."""
    context = _context(peer)
    deadline = time.monotonic() + MEET
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([listener], [], [], left)[0]:
            raise OSError("nobody called within {:.0f} s".format(MEET))
        raw, _ = listener.accept()
        try:
            raw.settimeout(HANDSHAKE)
            _tune(raw)
            sock = context.wrap_socket(raw, server_side=True)
            _pinned(sock, peer)
            return sock
        except OSError:  # ssl.SSLError is one: a scanner, or somebody else's copy
            raw.close()


def _dial(peer: Dict[str, Any]) -> Tuple[ssl.SSLSocket, str]:
    """Connected to the first of the addresses where the right certificate is shown, and which one that was."""
    context = _context(peer)
    why: List[str] = []
    for address in peer["addresses"]:
        raw: Optional[socket.socket] = None
        try:
            raw = socket.create_connection((address, peer["port"]), DIAL)
            _tune(raw)
            raw.settimeout(HANDSHAKE)
            sock = context.wrap_socket(raw)
            _pinned(sock, peer)
            return sock, address
        except OSError as error:
            why.append("{}: {}".format(address, error))
            if raw is not None:
                raw.close()
    raise OSError("; ".join(why) or "no address to dial")


def meet(peer: Dict[str, Any]) -> ssl.SSLSocket:
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


def knock(peer: Dict[str, Any]) -> Dict[str, Any]:
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
