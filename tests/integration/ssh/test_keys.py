"""Login: an agent, certificates, passphrases, and the messages of failed logins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh import auth_keys
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import Lab, SshServer, make_key
from support.prepared_prompter import Answers

BASE = "Host gpu1\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {dir}/known_hosts\n"


def reached(server: SshServer) -> SshHost:
    machine = SshHost("gpu1", server.config)
    machine.connect()
    return machine


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    PROMPTS.reset()
    auth_keys._opened.clear()


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an ssh-agent; yield the path of its socket."""
    if not shutil.which("ssh-agent"):
        pytest.skip("no ssh-agent: apt-get install openssh-client")
    path = str(tmp_path_factory.mktemp("agent") / "sock")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    while not os.path.exists(path):
        assert process.poll() is None
    yield path
    process.terminate()
    process.wait(60)


def add(agent: str, *files: Path) -> None:
    for file in files:
        subprocess.run(
            ["ssh-add", "-q", str(file)], check=True, capture_output=True, env={**os.environ, "SSH_AUTH_SOCK": agent}
        )


def test_agent_key_is_used(server: SshServer, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add(agent, server.user_key)
    server.user_key.unlink()
    server.configure(BASE)
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(server)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    reached(server).close()


def test_identity_agent_selects_agent(server: SshServer, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add(agent, server.user_key)
    server.user_key.unlink()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server.configure(BASE + f"  IdentityAgent {agent}\n")
    reached(server).close()
    server.configure(BASE + "  IdentityAgent {dir}/no-socket\n")
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(server)


def test_identities_only_limits_agent_keys(server: SshServer, agent: str, tmp_path: Path) -> None:
    """The server closes the connection after six offered keys."""
    add(agent, *(make_key(tmp_path / f"other{number}") for number in range(7)), server.user_key)
    server.user_key.unlink()
    server.configure(BASE + f"  IdentityAgent {agent}\n")
    with pytest.raises(HostError, match="closed the connection during login") as refused:
        reached(server)
    assert "IdentitiesOnly yes" in refused.value.hint
    server.configure(BASE + f"  IdentityAgent {agent}\n  IdentityFile {{dir}}/user_key\n  IdentitiesOnly yes\n")
    reached(server).close()


def certificate_for(tmp_path: Path, key: Path) -> Path:
    """Sign a certificate for the key with an authority that the server trusts."""
    authority = tmp_path / "authority"
    if not authority.exists():
        make_key(authority)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user, f"{key}.pub"], check=True)
    return Path(f"{key}-cert.pub")


@pytest.fixture
def trusting(lab: Lab, tmp_path: Path) -> SshServer:
    """Create a server that accepts certificates alone."""
    make_key(tmp_path / "authority")
    server = lab.host("gpu1", sshd=f"TrustedUserCAKeys {tmp_path}/authority.pub\n")
    (server.directory / "authorized_keys").write_text("")
    return server


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_certificate_beside_key_logs_in(trusting: SshServer, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "mine", kind=kind)
    trusting.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(trusting)
    certificate_for(tmp_path, key)
    reached(trusting).close()


def test_certificate_file_option_is_used(trusting: SshServer, tmp_path: Path) -> None:
    key, other = make_key(tmp_path / "mine"), make_key(tmp_path / "other")
    certificate = certificate_for(tmp_path, key).rename(tmp_path / "elsewhere.pub")
    wrong = certificate_for(tmp_path, other)
    trusting.configure(
        BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  CertificateFile {wrong}\n  CertificateFile {certificate}\n"
    )
    reached(trusting).close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_certificate_in_agent_logs_in(trusting: SshServer, agent: str, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "mine", kind=kind)
    certificate_for(tmp_path, key)
    add(agent, key)
    trusting.configure(BASE + f"  IdentityAgent {agent}\n  IdentityFile {key}\n  IdentitiesOnly yes\n")
    for file in (key, Path(f"{key}-cert.pub")):
        file.unlink()
    reached(trusting).close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_passphrase_is_prompted_once(server: SshServer, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame", kind=kind)
    (server.directory / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    prompter = Answers(passphrases=["wrong", "open sesame"])
    with PROMPTS.use(prompter):
        machine = reached(server)
        assert [(each.file, each.again) for each in prompter.passphrase_prompts] == [
            (str(key), False),
            (str(key), True),
        ]
        further = machine.with_new_connection()
        server.drop_connections()
        machine.connect()
        assert len(prompter.passphrase_prompts) == 2, "further connections do not prompt"
    further.close()
    machine.close()


def test_locked_key_without_prompter_has_hint(server: SshServer, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match="has a passphrase, and none was entered") as refused:
        reached(server)
    assert refused.value.hint == f"ssh-add {key} adds it to the agent"


def test_passphrase_prompts_are_limited(server: SshServer, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    prompter = Answers(passphrases=["a", "b", "c", "d", "e"])
    with PROMPTS.use(prompter):
        for _ in range(2):
            with pytest.raises(HostError, match="has a passphrase"):
                reached(server)
    assert len(prompter.passphrase_prompts) == 3


def test_locked_key_is_skipped_if_another_logs_in(server: SshServer, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {locked}\n  IdentityFile {{dir}}/user_key\n  IdentitiesOnly yes\n")
    prompter = Answers()
    with PROMPTS.use(prompter):
        reached(server).close()
    assert prompter.passphrase_prompts == []


def test_unreadable_key_file_is_named(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("not a key\n")
    server.configure(BASE + f"  IdentityFile {tmp_path}/none\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match=f"{tmp_path}/none cannot be read"):
        reached(server)


def test_server_without_public_keys_is_named(lab: Lab) -> None:
    server = lab.host("gpu1", sshd="PubkeyAuthentication no\nPasswordAuthentication yes\n")
    with pytest.raises(HostError, match="takes no keys"):
        reached(server)
