"""The SSH transport, apart from a server."""

from __future__ import annotations

import socket

from midstream.hosts.ssh.transport import Transport


def test_closed_transport_that_was_not_started_closes_its_socket() -> None:
    """As when a list of known hosts cannot be read: the server would wait for a greeting until it gives up."""
    ours, theirs = socket.socketpair()
    with theirs:
        transport = Transport(ours)
        transport.close()
        assert ours.fileno() == -1
        theirs.settimeout(60)
        assert theirs.recv(1) == b""
        transport.close()
        assert not transport.is_alive()
