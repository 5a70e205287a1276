"""Hosts behind other hosts: ProxyJump and ProxyCommand over real SSH servers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.host_pool import open_host
from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh import transport
from midstream.hosts.ssh.ssh_host import SshHost
from midstream_host.runs import run_state
from simulators.sshd import Lab, SshServer, make_key
from support.prepared_prompter import Answers


def blocks(*servers: SshServer) -> str:
    return "".join((server.directory / "ssh_config").read_text() for server in servers)


def reach(server: SshServer, ssh_config: str) -> SshHost:
    """Connect to the host with an SSH configuration of these lines."""
    (server.directory / "ssh_config").write_text(ssh_config)
    machine = open_host(server.name, server.config)
    assert isinstance(machine, SshHost)
    machine.connect()
    return machine


@pytest.fixture
def inner(lab: Lab) -> SshServer:
    return lab.host("inner")


@pytest.fixture
def gateway(lab: Lab) -> SshServer:
    return lab.host("gateway")


def children() -> list[str]:
    found = subprocess.run(["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if " -W " in line]


def test_proxy_jump_reaches_host(inner: SshServer, gateway: SshServer) -> None:
    machine = reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    assert len(gateway.sessions()) == 1
    data = os.urandom(1 << 20)
    assert machine.run(["cat"], stdin=data).stdout == data
    assert machine.call(run_state.list_runs)(root=machine.root) == []
    assert len(children()) == 1
    machine.close()
    assert children() == []


def test_proxy_jump_order_is_kept(lab: Lab, inner: SshServer, gateway: SshServer) -> None:
    outer = lab.host("outer")
    machine = reach(inner, f"Host inner\n  ProxyJump outer,gateway\n{blocks(inner, outer, gateway)}")
    assert len(outer.sessions()) == len(gateway.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


@pytest.fixture
def hide_ssh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function that hides OpenSSH's programs: servers are started before."""
    with monkeypatch.context() as patch:
        yield lambda: patch.setattr("shutil.which", lambda _: None)


def test_jumps_without_ssh_program(
    lab: Lab, inner: SshServer, gateway: SshServer, hide_ssh: Callable[[], None]
) -> None:
    """A chain of two jumps, and a third in the configuration of the outermost one."""
    hide_ssh()
    outer, gate = lab.host("outer"), lab.host("gate")
    config = (
        f"Host inner\n  ProxyJump outer,gateway\nHost outer\n  ProxyJump gate\n{blocks(inner, outer, gateway, gate)}"
    )
    machine = reach(inner, config)
    data = os.urandom(1 << 20)
    assert machine.run(["cat"], stdin=data).stdout == data
    process = machine.open(["sleep", "60"])
    gate.stop()
    with pytest.raises(ConnectionLostError):
        process.wait(90)
    process.close()
    with pytest.raises(HostError, match=r"gate: 127.0.0.1:\d+ cannot be reached: Connection refused"):
        machine.connect()
    gate.start()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_lost_jump_channel_closes_without_error(
    inner: SshServer, gateway: SshServer, hide_ssh: Callable[[], None]
) -> None:
    """The transport's thread closes the channel; no one catches its exceptions."""
    hide_ssh()
    machine = reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    connection = machine._connection
    assert connection is not None
    channel: Any = connection.transport.sock
    channel.get_transport().packetizer.close()
    channel.close()
    channel.shutdown(2)
    machine.close()


def test_circular_jumps_are_refused(inner: SshServer, gateway: SshServer, hide_ssh: Callable[[], None]) -> None:
    hide_ssh()
    with pytest.raises(HostError, match="more than 8 jumps"):
        reach(inner, f"Host inner\n  ProxyJump gateway\nHost gateway\n  ProxyJump inner\n{blocks(inner, gateway)}")


def test_jump_without_forwarding_is_one_line(lab: Lab, inner: SshServer, hide_ssh: Callable[[], None]) -> None:
    hide_ssh()
    gateway = lab.host("gateway", sshd="AllowTcpForwarding no\n")
    with pytest.raises(HostError, match="cannot be reached from gateway") as refused:
        reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    assert "AllowTcpForwarding" in refused.value.hint


def test_jump_prompts_for_host_key_and_passphrase(inner: SshServer, gateway: SshServer, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    (gateway.directory / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    gateway.known_hosts.unlink()
    config = f"Host inner\n  ProxyJump gateway\nHost gateway\n  IdentityFile {key}\n{blocks(inner, gateway)}"
    prompter = Answers(accepts=True, passphrases=["open sesame"])
    with PROMPTS.use(prompter):
        machine = reach(inner, config)
    assert [(prompt.host, prompt.fingerprint) for prompt in prompter.host_keys] == [("gateway", gateway.fingerprint)]
    assert [prompt.file for prompt in prompter.passphrase_prompts] == [str(key)]
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_changed_key_of_jump_is_refused(inner: SshServer, gateway: SshServer, tmp_path: Path) -> None:
    kind, key = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    gateway.known_hosts.write_text(f"[127.0.0.1]:{gateway.port} {kind} {key}\n")
    with PROMPTS.use(Answers(accepts=True)), pytest.raises(HostError, match=r"gateway: host key of .* has CHANGED"):
        reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")


def test_proxy_command_reaches_host(inner: SshServer, gateway: SshServer) -> None:
    config = gateway.directory / "ssh_config"
    machine = reach(inner, f"Host inner\n  ProxyCommand ssh -F {config} -W %h:%p gateway\n{blocks(inner)}")
    assert len(gateway.sessions()) == 1
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_unknown_key_of_jump_is_refused(inner: SshServer, gateway: SshServer) -> None:
    gateway.known_hosts.write_text("")
    with pytest.raises(HostError, match=r"gateway: host key of .* is not known") as refused:
        reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    assert "\n" not in refused.value.message
    subprocess.run(["sh", "-c", refused.value.hint.split(": ", 1)[1]], check=True, capture_output=True)
    reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}").close()


def test_unknown_key_behind_jump_is_refused(inner: SshServer, gateway: SshServer) -> None:
    inner.known_hosts.write_text("")
    with pytest.raises(HostError, match="is not known"):
        reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    assert children() == []


def test_unreachable_jump_is_one_line(inner: SshServer, gateway: SshServer) -> None:
    gateway.stop()
    with pytest.raises(HostError, match="Connection refused"):
        reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")


def test_failing_proxy_command_is_one_line(inner: SshServer) -> None:
    with pytest.raises(HostError, match="no-such-command: not found"):
        reach(inner, f"Host inner\n  ProxyCommand no-such-command %h\n{blocks(inner)}")


def test_cut_jump_is_reported_and_reconnects(
    inner: SshServer, gateway: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "KEEPALIVE_INTERVAL", 0)  # the end of the proxy is noticed, not silence
    machine = reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    process = machine.open(["sleep", "60"])
    gateway.drop_connections()
    with pytest.raises(ConnectionLostError):
        process.wait(90)
    process.close()
    machine.connect()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_killed_proxy_is_reported(inner: SshServer, gateway: SshServer) -> None:
    machine = reach(inner, f"Host inner\n  ProxyJump gateway\n{blocks(inner, gateway)}")
    process = machine.open(["sleep", "60"])
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    [pid] = [int(line.split()[0]) for line in found.stdout.splitlines() if " -W " in line]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionLostError):
        process.wait(90)
    process.close()
    machine.close()
