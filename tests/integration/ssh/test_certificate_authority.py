"""Host certificates, signed by an authority in known_hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import SshServer, make_key

pytestmark = pytest.mark.system


@pytest.fixture
def server(server: SshServer) -> SshServer:
    """Empty the server's known_hosts file."""
    server.known_hosts.write_text("")
    return server


def certify(server: SshServer, authority: Path, *flags: str, names: str = "127.0.0.1", host: bool = True) -> None:
    """Sign the host's key, and configure the server to present the certificate."""
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
    """Return whether midstream logs in; assert that OpenSSH's program does the same."""
    ssh = ["ssh", "-F", str(server.directory / "ssh_config"), "-o", "BatchMode=yes", "gpu1", "true"]
    theirs = subprocess.run(ssh, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    machine = SshHost("gpu1", server.config)
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
        SshHost("gpu1", server.config).connect()
    return str(caught.value)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_host_certificate_of_trusted_authority_is_accepted(server: SshServer, tmp_path: Path, kind: str) -> None:
    authority = make_key(tmp_path / "ca", kind=kind)
    certify(server, authority)
    assert not trusts_as_ssh_does(server), "the authority is not trusted yet"
    trust(server, authority)
    assert trusts_as_ssh_does(server)


@pytest.mark.parametrize(
    ("flags", "names", "expected"),
    [
        ((), "other.example", "it is for other.example, not for 127.0.0.1"),
        (("-V", "20200101:20200201"), "127.0.0.1", r"it was valid until 2020-0"),
        (("-V", "20990101:20990201"), "127.0.0.1", r"it is valid from 20"),
    ],
)
def test_invalid_host_certificate_is_refused(
    server: SshServer, tmp_path: Path, flags: Sequence[str], names: str, expected: str
) -> None:
    authority = make_key(tmp_path / "ca")
    certify(server, authority, *flags, names=names)
    trust(server, authority)
    assert not trusts_as_ssh_does(server)
    assert expected in refusal(server)


def test_foreign_or_revoked_authority_is_refused(server: SshServer, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "ca")
    certify(server, authority)
    trust(server, authority, "*.example")
    assert "is not known (ssh-ed25519" in refusal(server), "it counts as an unknown plain key"
    trust(server, authority)
    assert trusts_as_ssh_does(server)
    trust(server, authority, marker="@revoked")
    assert not trusts_as_ssh_does(server)


def test_known_plain_key_suffices_beside_certificate(server: SshServer, tmp_path: Path) -> None:
    certify(server, make_key(tmp_path / "ca"))
    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    assert trusts_as_ssh_does(server)
