"""The SSH transport, apart from a server."""

from __future__ import annotations

import socket
import threading

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


def test_keepalive_during_a_key_exchange_does_not_wait() -> None:
    """The thread that sends it reads the server's part of the exchange."""
    ours, theirs = socket.socketpair()
    with theirs:
        transport = Transport(ours)
        transport.__dict__.update(active=True)
        keepalive = threading.Thread(target=transport._keepalive, daemon=True)
        keepalive.start()  # the keys were not exchanged yet
        keepalive.join(10)
        assert not keepalive.is_alive(), "a third of the time that paramiko waits"
        transport.__dict__.update(active=False)
        transport.close()


def test_channels_may_be_requested_while_a_connection_ends() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport = Transport(ours)
        events: dict[int, threading.Event] = transport.__dict__["channel_events"]
        events[0] = threading.Event()
        for number, event in enumerate(events.values(), 1):
            event.set()
            events[number] = threading.Event()  # as another thread adds it
        transport.close()
