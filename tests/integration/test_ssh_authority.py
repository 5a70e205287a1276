"""Hosts that an authority vouches for: certificates in the place of keys in known_hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.hosts.ssh.ssh_host import SshMachine
from simulators.sshd import Lab, SshServer, make_key

pytestmark = pytest.mark.system


@pytest.fixture
def server(lab: Lab) -> SshServer:
    """A host whose key nobody knows."""
    made = lab.host("gpu1", devices=1)
    made.known_hosts.write_text("")
    return made


def certify(server: SshServer, authority: Path, *flags: str, names: str = "127.0.0.1", host: bool = True) -> None:
    """Sign the host's key, and have the server show the certificate."""
    kind = ["-h"] if host else []
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "gpu1", *kind, "-n", names, *flags]
    subprocess.run([*argv, str(server.directory / "host_key.pub")], check=True, stdin=subprocess.DEVNULL)
    server.stop()
    with (server.directory / "sshd_config").open("a") as file:
        file.write(f"HostCertificate {server.directory / 'host_key-cert.pub'}\n")
    server.start()


def trust(server: SshServer, authority: Path, pattern: str = "*", marker: str = "@cert-authority") -> None:
    key = authority.with_suffix(".pub").read_text()
    with server.known_hosts.open("a") as file:
        file.write(f"{marker} {pattern} {key}")


def trusts_as_ssh_does(server: SshServer) -> bool:
    """Whether midstream logs in; OpenSSH's own program is asked too, and has to say the same."""
    ssh = ["ssh", "-F", str(server.directory / "ssh_config"), "-o", "BatchMode=yes", "gpu1", "true"]
    theirs = subprocess.run(ssh, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    machine = SshMachine("gpu1", server.config)
    try:
        machine.connect()
        ours = True
    except HostError:
        ours = False
    finally:
        machine.close()
    assert ours == theirs
    return ours


def refusal(server: SshServer) -> str:
    with pytest.raises(HostError) as caught:
        SshMachine("gpu1", server.config).connect()
    return str(caught.value)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_host_is_known_by_its_authority(server: SshServer, tmp_path: Path, kind: str) -> None:
    authority = make_key(tmp_path / "ca", kind=kind)
    certify(server, authority)
    assert not trusts_as_ssh_does(server), "nobody vouches for it yet"
    trust(server, authority)
    assert trusts_as_ssh_does(server)


@pytest.mark.parametrize(
    ("flags", "names", "said"),
    [
        ((), "other.example", "it is for other.example, not for 127.0.0.1"),
        (("-V", "20200101:20200201"), "127.0.0.1", r"it was good until 2020-0"),
        (("-V", "20990101:20990201"), "127.0.0.1", r"it is good from 20"),
    ],
)
def test_a_certificate_that_is_not_good_is_refused(
    server: SshServer, tmp_path: Path, flags: Sequence[str], names: str, said: str
) -> None:
    authority = make_key(tmp_path / "ca")
    certify(server, authority, *flags, names=names)
    trust(server, authority)
    assert not trusts_as_ssh_does(server)
    assert said in refusal(server)


def test_an_authority_of_other_hosts_and_a_revoked_one_vouch_for_nothing(server: SshServer, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    certify(server, authority)
    trust(server, authority, "*.example")
    assert "is not known (ssh-ed25519" in refusal(server), "it is a plain key then, met for the first time"
    trust(server, authority)
    assert trusts_as_ssh_does(server)
    trust(server, authority, marker="@revoked")
    assert not trusts_as_ssh_does(server)


def test_a_plain_key_that_is_known_is_enough_beside_a_certificate(server: SshServer, tmp_path: Path) -> None:
    certify(server, make_key(tmp_path / "ca"))
    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    assert trusts_as_ssh_does(server)
