"""Settings of a copy's TLS connections: certificates, and the trusted one."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Generator

from midstream_core.json_types import JsonObject, str_of
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT

if TYPE_CHECKING:  # its import takes longer than all others together: functions import it when they need it
    import ssl


@contextlib.contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """Context manager: a path from which ``text`` can be read once."""
    if hasattr(os, "memfd_create"):
        descriptor, folder = os.memfd_create("certificate"), "/proc/self/fd"
        os.write(descriptor, text.encode())
    else:  # not Linux: a pipe, whose buffer has room for the text
        descriptor, writing = os.pipe()
        folder = "/dev/fd"
        os.write(writing, text.encode())
        os.close(writing)
    try:
        yield "{}/{}".format(folder, descriptor)
    finally:
        os.close(descriptor)


def context_of(peer: JsonObject) -> ssl.SSLContext:
    """Return the settings of this end.

    The other end's certificate is the only trusted one.
    """
    import ssl

    server = peer["role"] == "listen"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Names prove nothing here: the only trusted certificate is the one of the other end.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=str_of(peer["trusted"]))
    if server:
        context.num_tickets = 0  # no session is continued
    with _in_memory(str_of(peer["certificate"])) as certificate, _in_memory(str_of(peer["key"])) as key:
        context.load_cert_chain(certificate, key)
    return context


def check_pinned(sock: ssl.SSLSocket, peer: JsonObject) -> None:
    """Raise OSError unless the other end has exactly the trusted certificate."""
    import ssl

    if sock.getpeercert(True) != ssl.PEM_cert_to_DER_cert(str_of(peer["trusted"])):
        raise ssl.SSLError("the other end has another certificate")


def tune(sock: socket.socket) -> None:
    """Send small pieces at once; end a connection that is not acknowledged."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(IDLE_TIMEOUT * 1000))
