"""Hosts that are reached through another: ProxyJump and ProxyCommand over real SSH servers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import HostError, LostContact
from midstream.hosts.host_pool import open_host
from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh.ssh_host import SshMachine
from simulators.sshd import Lab, SshServer, make_key
from support.people import Answers


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
    assert machine.call("runs.run_state.list_runs", root=machine.root) == []
    assert len(children()) == 1
    machine.close()
    assert children() == []


def test_several_jumps_are_taken_in_order(lab: Lab, inner: SshServer, door: SshServer):
    outer = lab.host("outer")
    machine = reach(inner, f"Host inner\n  ProxyJump outer,door\n{blocks(inner, outer, door)}")
    assert len(outer.sessions()) == len(door.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


@pytest.fixture
def no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without OpenSSH's programs."""
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda name: None)
        yield


def test_without_ssh_the_jumps_are_taken_from_here(lab: Lab, inner: SshServer, door: SshServer, no_ssh: None):
    """A chain of two by name, and a third that the outermost one's own entry asks for."""
    outer, gate = lab.host("outer"), lab.host("gate")
    config = f"Host inner\n  ProxyJump outer,door\nHost outer\n  ProxyJump gate\n{blocks(inner, outer, door, gate)}"
    machine = reach(inner, config)
    data = os.urandom(1 << 20)
    assert machine.run(["cat"], stdin=data).stdout == data
    process = machine.open(["sleep", "60"])
    gate.stop()
    with pytest.raises(LostContact):
        process.wait(90)
    process.close()
    with pytest.raises(HostError, match=r"gate: 127.0.0.1:\d+ cannot be reached: Connection refused"):
        machine.connect()
    gate.start()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_a_way_that_is_gone_is_closed_in_silence(inner: SshServer, door: SshServer, no_ssh: None):
    """The transport's own thread does so, and nobody would catch what it raises."""
    machine = reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    connection = machine._connection
    assert connection is not None
    way: Any = connection.transport.sock
    way.get_transport().packetizer.close()
    way.close()
    way.shutdown(2)
    machine.close()


def test_jumps_in_a_circle_are_refused(inner: SshServer, door: SshServer, no_ssh: None):
    with pytest.raises(HostError, match="more than 8 jumps"):
        reach(inner, f"Host inner\n  ProxyJump door\nHost door\n  ProxyJump inner\n{blocks(inner, door)}")


def test_a_jump_that_forwards_nothing_is_one_clear_line(lab: Lab, inner: SshServer, no_ssh: None):
    door = lab.host("door", sshd="AllowTcpForwarding no\n")
    with pytest.raises(HostError, match="cannot be reached from door") as refused:
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    assert "AllowTcpForwarding" in refused.value.hint


def test_a_person_is_asked_about_a_key_on_the_way_and_the_passphrase_there(
    inner: SshServer, door: SshServer, tmp_path: Path
):
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    (door.directory / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    door.known_hosts.unlink()
    config = f"Host inner\n  ProxyJump door\nHost door\n  IdentityFile {key}\n{blocks(inner, door)}"
    person = Answers(accepts=True, passphrases=["open sesame"])
    with PROMPTS.of(person):
        machine = reach(inner, config)
    assert [(contact.host, contact.fingerprint) for contact in person.contacts] == [("door", door.fingerprint)]
    assert [wanted.file for wanted in person.asked] == [str(key)]
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_a_changed_key_on_the_way_is_refused_and_named(inner: SshServer, door: SshServer, tmp_path: Path):
    kind, key = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    door.known_hosts.write_text(f"[127.0.0.1]:{door.port} {kind} {key}\n")
    with PROMPTS.of(Answers(accepts=True)), pytest.raises(HostError, match=r"door: host key of .* has CHANGED"):
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")


def test_a_proxy_command_carries_the_connection(inner: SshServer, door: SshServer):
    config = door.directory / "ssh_config"
    machine = reach(inner, f"Host inner\n  ProxyCommand ssh -F {config} -W %h:%p door\n{blocks(inner)}")
    assert len(door.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_an_unknown_key_on_the_way_is_refused(inner: SshServer, door: SshServer):
    door.known_hosts.write_text("")
    with pytest.raises(HostError, match=r"door: host key of .* is not known") as refused:
        reach(inner, f"Host inner\n  ProxyJump door\n{blocks(inner, door)}")
    assert "\n" not in refused.value.message
    subprocess.run(["sh", "-c", refused.value.hint.split(": ", 1)[1]], check=True, capture_output=True)
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
        process.wait(90)
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
        process.wait(90)
    process.close()
    machine.close()
