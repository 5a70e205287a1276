"""Hosts that are reached through another: ProxyJump and ProxyCommand over real SSH servers."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from lab.sshd import Lab, SshServer
from midstream.errors import HostError, LostContact
from midstream.hosts.open import open_host
from midstream.hosts.ssh import SshMachine


def blocks(*servers: SshServer) -> str:
    return "".join((server.directory / "ssh_config").read_text() for server in servers)


def reach(server: SshServer, ssh_config: str) -> SshMachine:
    """The host, by a configuration of these lines."""
    (server.directory / "ssh_config").write_text(ssh_config)
    machine = open_host(server.name, server.config)
    assert isinstance(machine, SshMachine)
    machine.connect()
    return machine


@pytest.fixture
def inner(lab: Lab) -> SshServer:
    return lab.host("inner")


@pytest.fixture
def door(lab: Lab) -> SshServer:
    return lab.host("door")


def children() -> list[str]:
    found = subprocess.run(["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if " -W " in line]


def test_a_jump_host_is_passed_through(inner: SshServer, door: SshServer):
    machine = reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    assert len(door.sessions()) == 1
    data = os.urandom(1 << 20)
    assert machine.run(["cat"], stdin=data).stdout == data
    assert machine.call("runs.list_runs", root=machine.root) == []
    assert len(children()) == 1
    machine.close()
    assert children() == []


def test_several_jumps_are_taken_in_order(lab: Lab, inner: SshServer, door: SshServer):
    outer = lab.host("outer")
    machine = reach(inner, f"Host inner\n  ProxyJump outer,door\n{blocks(inner, outer, door)}")
    assert len(outer.sessions()) == len(door.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_a_proxy_command_carries_the_connection(inner: SshServer, door: SshServer):
    config = door.directory / "ssh_config"
    machine = reach(inner, f"Host inner\n  ProxyCommand ssh -F {config} -W %h:%p door\n{blocks(inner)}")
    assert len(door.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_an_unknown_key_on_the_way_is_refused(inner: SshServer, door: SshServer):
    door.known_hosts.write_text("")
    with pytest.raises(HostError, match="door: host key of .* is not known") as refused:
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    assert "\n" not in refused.value.message
    subprocess.run(["sh", "-c", refused.value.fix.split(": ", 1)[1]], check=True, capture_output=True)
    reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}").close()


def test_an_unknown_key_at_the_end_is_refused(inner: SshServer, door: SshServer):
    inner.known_hosts.write_text("")
    with pytest.raises(HostError, match="is not known"):
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    assert children() == []


def test_a_door_that_is_shut_is_one_clear_line(inner: SshServer, door: SshServer):
    door.stop()
    with pytest.raises(HostError, match="Connection refused"):
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")


def test_a_proxy_command_that_does_not_run_is_one_clear_line(inner: SshServer):
    with pytest.raises(HostError, match="no-such-command: not found"):
        reach(inner, f"Host inner\n  ProxyCommand no-such-command %h\n{blocks(inner)}")


def test_a_cut_on_the_way_is_lost_contact_and_heals(inner: SshServer, door: SshServer):
    machine = reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    process = machine.open(["sleep", "60"])
    door.drop_connections()
    began = time.monotonic()
    with pytest.raises(LostContact):
        process.wait(30)
    assert time.monotonic() - began < 20
    process.close()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_a_killed_proxy_is_lost_contact(inner: SshServer, door: SshServer):
    machine = reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    process = machine.open(["sleep", "60"])
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    [pid] = [int(line.split()[0]) for line in found.stdout.splitlines() if " -W " in line]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LostContact):
        process.wait(30)
    process.close()
    machine.close()
