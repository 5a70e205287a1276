"""A link that fails without a notice, to a host in a network namespace."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest

from midstream.errors import ConnectionLostError
from midstream.hosts.ssh.connection import TCP_USER_TIMEOUT
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import SSHD, Lab

PATIENCE = 30.0  # seconds in which a dead link is detected on a busy machine


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Cable:
    """Network link from this machine to the host in the namespace."""

    name: str
    machine: SshHost

    def pull(self) -> None:
        ip("link", "set", self.name, "down")

    def plug(self) -> None:
        ip("link", "set", self.name, "up")


@pytest.fixture
def cable(lab: Lab) -> Iterator[Cable]:
    space, near, far = (f"ms{kind}{os.getpid()}"[:15] for kind in ("n", "a", "b"))
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("no network namespaces: run as root, with iproute2")
    try:
        ip("netns", "add", space)
    except subprocess.CalledProcessError:
        pytest.skip("no network namespaces here")
    net = f"10.{213 + os.getpid() % 40}.{os.getpid() // 40 % 250}"
    server = None
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        ip("addr", "add", f"{net}.1/24", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", space, "addr", "add", f"{net}.2/24", "dev", far)
        ip("-n", space, "link", "set", far, "up")
        host = lab.host("gpu1")
        config = host.directory / "sshd_config"
        (host.directory / "sshd_there").write_text(
            config.read_text().replace("ListenAddress 127.0.0.1", f"ListenAddress {net}.2")
        )
        ssh_config = host.directory / "ssh_config"
        ssh_config.write_text(
            ssh_config.read_text().replace("HostName 127.0.0.1", f"HostName {net}.2")
            + f"  HostKeyAlias [127.0.0.1]:{host.port}\n"
        )
        argv = ["ip", "netns", "exec", space, SSHD, "-D", "-f", str(host.directory / "sshd_there")]
        server = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((f"{net}.2", host.port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "no sshd in the namespace"
                time.sleep(0.05)
        machine = SshHost("gpu1", host.config)
        machine.connect()
        yield Cable(near, machine)
        machine.close()
    finally:
        if server is not None:
            server.terminate()
            server.wait(60)
        ip("netns", "del", space)


def test_dead_link_is_reported_and_reconnects(cable: Cable) -> None:
    machine = cable.machine
    connection = machine._connection
    assert connection is not None
    sock = cast(socket.socket, connection.transport.sock)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == TCP_USER_TIMEOUT
    idle = machine.open(["sleep", "60"])
    busy = machine.open(["cat"])
    cable.pull()
    with pytest.raises(BrokenPipeError):
        busy.stdin.write(bytes(64 << 20))
    with pytest.raises(ConnectionLostError):
        idle.wait(PATIENCE)
    busy.close()
    idle.close()
    cable.plug()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
