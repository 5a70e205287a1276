"""A link that fails without a notice, to a host in a network namespace."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import pytest

from midstream.errors import ConnectionLostError
from midstream.hosts.ssh.connection import TCP_USER_TIMEOUT
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.cable import Cable, NoNamespacesError, cable
from simulators.sshd import Lab

PATIENCE = 30.0  # seconds in which a dead link is detected on a busy machine


@pytest.fixture
def plugged(lab: Lab) -> Iterator[tuple[Cable, SshHost]]:
    """A cable, and the host at its other end."""
    with contextlib.ExitStack() as closing:
        try:
            made = closing.enter_context(cable())
        except NoNamespacesError as error:
            pytest.skip(str(error))
        server = lab.host("gpu1", address=made.there, space=made.space)
        machine = SshHost("gpu1", server.config)
        closing.callback(machine.close)
        machine.connect()
        yield made, machine


def test_dead_link_is_reported_and_reconnects(plugged: tuple[Cable, SshHost]) -> None:
    link, machine = plugged
    connection = machine._connection
    assert connection is not None
    sock = cast(socket.socket, connection.transport.sock)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == TCP_USER_TIMEOUT
    idle = machine.open(["sleep", "60"])
    busy = machine.open(["cat"])
    link.pull()
    with pytest.raises(BrokenPipeError):
        busy.stdin.write(bytes(64 << 20))
    with pytest.raises(ConnectionLostError):
        idle.wait(PATIENCE)
    busy.close()
    idle.close()
    link.plug()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
