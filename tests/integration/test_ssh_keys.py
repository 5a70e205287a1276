"""Logging in: an agent, certificates, passphrases, and what is said where nothing opens the door."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh import keys
from midstream.hosts.ssh.ssh_host import SshMachine
from simulators.sshd import Lab, SshServer, make_key
from support.people import Answers

BASE = "Host gpu1\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {dir}/known_hosts\n"


def reached(server: SshServer) -> SshMachine:
    machine = SshMachine("gpu1", server.config)
    machine.connect()
    return machine


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    PROMPTS.forget()
    keys._opened.clear()


@pytest.fixture
def server(lab: Lab) -> SshServer:
    return lab.host("gpu1")


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of an ssh-agent of our own."""
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


def test_a_key_that_only_the_agent_has_is_used(server: SshServer, agent: str, monkeypatch: pytest.MonkeyPatch):
    add(agent, server.user_key)
    server.user_key.unlink()
    server.configure(BASE)
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(server)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    reached(server).close()


def test_identity_agent_names_the_agent(server: SshServer, agent: str, monkeypatch: pytest.MonkeyPatch):
    add(agent, server.user_key)
    server.user_key.unlink()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server.configure(BASE + f"  IdentityAgent {agent}\n")
    reached(server).close()
    server.configure(BASE + "  IdentityAgent {dir}/no-socket\n")
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(server)


def test_identities_only_keeps_the_agents_other_keys_at_home(server: SshServer, agent: str, tmp_path: Path):
    """A server counts what it is offered; with the seventh key it closes the door."""
    add(agent, *(make_key(tmp_path / f"other{number}") for number in range(7)), server.user_key)
    server.user_key.unlink()
    server.configure(BASE + f"  IdentityAgent {agent}\n")
    with pytest.raises(HostError, match="closed the connection at the door") as refused:
        reached(server)
    assert "IdentitiesOnly yes" in refused.value.hint
    server.configure(BASE + f"  IdentityAgent {agent}\n  IdentityFile {{dir}}/user_key\n  IdentitiesOnly yes\n")
    reached(server).close()


def certified(server: SshServer, tmp_path: Path, key: Path) -> Path:
    """A certificate for the key, signed by an authority that the server trusts."""
    authority = tmp_path / "authority"
    if not authority.exists():
        make_key(authority)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", user, f"{key}.pub"], check=True)
    return Path(f"{key}-cert.pub")


@pytest.fixture
def trusting(lab: Lab, tmp_path: Path) -> SshServer:
    """A server that accepts no key, only certificates."""
    make_key(tmp_path / "authority")
    server = lab.host("gpu1", sshd=f"TrustedUserCAKeys {tmp_path}/authority.pub\n")
    (server.directory / "authorized_keys").write_text("")
    return server


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_beside_the_key_opens_the_door(trusting: SshServer, tmp_path: Path, kind: str):
    key = make_key(tmp_path / "mine", kind=kind)
    trusting.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match="accepts none of our keys"):
        reached(trusting)
    certified(trusting, tmp_path, key)
    reached(trusting).close()


def test_a_certificate_elsewhere_is_found_by_certificate_file(trusting: SshServer, tmp_path: Path):
    key, other = make_key(tmp_path / "mine"), make_key(tmp_path / "other")
    certificate = certified(trusting, tmp_path, key).rename(tmp_path / "elsewhere.pub")
    wrong = certified(trusting, tmp_path, other)
    trusting.configure(
        BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  CertificateFile {wrong}\n  CertificateFile {certificate}\n"
    )
    reached(trusting).close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_a_certificate_in_the_agent_opens_the_door(trusting: SshServer, agent: str, tmp_path: Path, kind: str):
    key = make_key(tmp_path / "mine", kind=kind)
    certified(trusting, tmp_path, key)
    add(agent, key)
    trusting.configure(BASE + f"  IdentityAgent {agent}\n  IdentityFile {key}\n  IdentitiesOnly yes\n")
    for file in (key, Path(f"{key}-cert.pub")):
        file.unlink()
    reached(trusting).close()


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_passphrase_is_asked_for_once(server: SshServer, tmp_path: Path, kind: str):
    key = make_key(tmp_path / "locked", passphrase="open sesame", kind=kind)
    (server.directory / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    person = Answers(passphrases=["wrong", "open sesame"])
    with PROMPTS.of(person):
        machine = reached(server)
        assert [(each.file, each.again) for each in person.asked] == [(str(key), False), (str(key), True)]
        further = machine.dial()
        server.drop_connections()
        machine.connect()
        assert len(person.asked) == 2, "further connections do not ask again"
    further.close()
    machine.close()


def test_a_locked_key_without_a_person_says_what_opens_it(server: SshServer, tmp_path: Path):
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match="has a passphrase, and nobody said it") as refused:
        reached(server)
    assert refused.value.hint == f"ssh-add {key} hands it to the agent"


def test_a_person_who_does_not_know_it_is_not_asked_for_ever(server: SshServer, tmp_path: Path):
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {key}\n  IdentitiesOnly yes\n")
    person = Answers(passphrases=["a", "b", "c", "d", "e"])
    with PROMPTS.of(person):
        for _ in range(2):
            with pytest.raises(HostError, match="has a passphrase"):
                reached(server)
    assert len(person.asked) == 3


def test_a_locked_key_is_left_locked_where_another_opens_the_door(server: SshServer, tmp_path: Path):
    locked = make_key(tmp_path / "locked", passphrase="open sesame")
    server.configure(BASE + f"  IdentityFile {locked}\n  IdentityFile {{dir}}/user_key\n  IdentitiesOnly yes\n")
    person = Answers()
    with PROMPTS.of(person):
        reached(server).close()
    assert person.asked == []


def test_a_file_that_is_no_key_is_named(server: SshServer, tmp_path: Path):
    (tmp_path / "none").write_text("not a key\n")
    server.configure(BASE + f"  IdentityFile {tmp_path}/none\n  IdentitiesOnly yes\n")
    with pytest.raises(HostError, match=f"{tmp_path}/none cannot be read"):
        reached(server)


def test_a_server_that_takes_no_keys_says_so(lab: Lab):
    server = lab.host("gpu1", sshd="PubkeyAuthentication no\nPasswordAuthentication yes\n")
    with pytest.raises(HostError, match="takes no keys"):
        reached(server)
