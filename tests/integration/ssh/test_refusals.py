"""Refusals before the login are named, and failed logins do not lock out other entries of a server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.ssh import failed_logins
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import Lab, SshServer, make_key, sshd_version
from support.command_line import midstream
from support.module_time import replace_time

pytestmark = pytest.mark.system
PATIENCE = 60.0  # seconds


def refusal(server: SshServer) -> HostError:
    with pytest.raises(HostError) as caught:
        SshHost("gpu1", server.config).connect()
    return caught.value


def logins(server: SshServer) -> int:
    """Return the number of failed logins that the server has counted."""
    return (server.directory / "sshd.log").read_text().count("Connection closed by authenticating user")


@pytest.mark.parametrize(
    ("option", "what", "offered"),
    [
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "key exchange methods", "sntrup761x25519-sha512"),
        ("Ciphers chacha20-poly1305@openssh.com", "ciphers", "chacha20-poly1305@openssh.com"),
        ("Ciphers aes128-ctr\nMACs umac-64@openssh.com", "MACs", "umac-64@openssh.com"),
    ],
)
def test_mismatch_of_algorithms_is_named(lab: Lab, option: str, what: str, offered: str) -> None:
    error = refusal(lab.host("gpu1", sshd=f"{option}\n"))
    assert f"it offers none of the {what} that are supported, only {offered}" in error.message
    assert "midstream supports " in error.hint
    assert "is it an SSH server?" not in str(error)


def test_host_key_without_common_kind_is_named(lab: Lab) -> None:
    server = lab.host("gpu1")
    with (server.directory / "ssh_config").open("a") as file:
        file.write("  HostKeyAlgorithms rsa-sha2-512\n")
    assert "none of the kinds of host key that are supported, only ssh-ed25519" in refusal(server).message


@pytest.fixture
def greeting() -> Iterator[tuple[SshServer | None, SshHostConfig, list[bytes]]]:
    """A port that answers each connection with prepared bytes and closes it."""
    answers: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(answers[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    yield None, SshHostConfig(address=f"127.0.0.1:{port}", ssh_config="/dev/null"), answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        # As OpenSSH 9.8 and newer, and as OpenSSH 8.5 and newer.
        (b"Not allowed at this time\r\n", "PerSourcePenalties"),
        (b"Exceeded MaxStartups\r\n", "MaxStartups"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it sent 'HTTP/1.1 400 Bad Request"),
    ],
)
def test_what_is_sent_instead_of_a_version_is_named(
    greeting: tuple[None, SshHostConfig, list[bytes]], sent: bytes, expected: str
) -> None:
    _, config, answers = greeting
    answers.append(sent)
    with pytest.raises(HostError) as caught:
        SshHost("gpu1", config).connect()
    assert expected in caught.value.message
    assert ("is it an SSH server?" in caught.value.hint) == sent.startswith(b"HTTP")


@pytest.fixture
def refused(lab: Lab, tmp_path: Path) -> tuple[SshServer, SshHostConfig]:
    """A server, and the entry of another key that it does not accept."""
    server = lab.host("good")
    key = make_key(tmp_path / "wrong")
    config = tmp_path / "config"
    text = (server.directory / "ssh_config").read_text().replace(str(server.user_key), str(key))
    config.write_text(text)
    return server, SshHostConfig(address="good", ssh_config=str(config), root=str(tmp_path / "root"))


def test_refused_key_is_not_offered_again_at_once(refused: tuple[SshServer, SshHostConfig], tmp_path: Path) -> None:
    server, wrong = refused
    for number in range(5):
        with pytest.raises(HostError, match="accepts none of our keys") as caught:
            SshHost("wrong", wrong).connect()
        assert ("it is tried again in" in caught.value.message) == (number > 0)
        SshHost("good", server.config).connect()  # another entry of the server is not delayed
    assert logins(server) == 1
    with (server.directory / "authorized_keys").open("a") as file:
        file.write((tmp_path / "wrong.pub").read_text())
    failed_logins.forget()
    SshHost("wrong", wrong).connect()


def test_new_key_is_tried_at_once(refused: tuple[SshServer, SshHostConfig], tmp_path: Path) -> None:
    server, wrong = refused
    with pytest.raises(HostError):
        SshHost("wrong", wrong).connect()
    (tmp_path / "wrong").write_text(server.user_key.read_text())
    SshHost("wrong", wrong).connect()


def test_accepted_entry_is_not_delayed_by_others(
    refused: tuple[SshServer, SshHostConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused once, and the server accepts its key since."""
    server, wrong = refused
    keys = server.directory / "authorized_keys"
    accepted = keys.read_text()
    keys.write_text("")
    with pytest.raises(HostError):
        SshHost("good", server.config).connect()
    keys.write_text(accepted)
    later = time.time() + failed_logins.INTERVAL
    replace_time(monkeypatch, failed_logins, time=lambda: later)
    SshHost("good", server.config).connect()
    with pytest.raises(HostError):
        SshHost("wrong", wrong).connect()
    SshHost("good", server.config).connect()


def test_repeated_status_leaves_other_entry_reachable(lab: Lab, refused: tuple[SshServer, SshHostConfig]) -> None:
    server, wrong = refused
    fleet = lab.fleet_file(good=server.config, wrong=wrong)
    began = time.monotonic()
    for _ in range(3):
        shown = midstream("--fleet", fleet, "--status", "--json")
        links = {host["name"]: host["link"] for event in shown.of("host") for host in [event]}
        assert links == {"good": "live", "wrong": "down"}, shown.stdout
    assert 1 <= logins(server) <= 1 + (time.monotonic() - began) // failed_logins.INTERVAL


@pytest.mark.parametrize("way", ["ProxyJump jump", "ProxyCommand ssh -F {file} -o BatchMode=yes -W %h:%p jump"])
def test_jump_that_refuses_is_not_tried_again_at_once(
    refused: tuple[SshServer, SshHostConfig], tmp_path: Path, way: str
) -> None:
    server, wrong = refused
    file = Path(wrong.ssh_config)
    jump = file.read_text().replace("Host good", "Host jump")
    file.write_text(f"Host good\n  {way.format(file=file)}\n{(server.directory / 'ssh_config').read_text()}{jump}")
    for _ in range(5):
        with pytest.raises(HostError, match=r"accepts none of our keys|Permission denied"):
            SshHost("behind", wrong).connect()
    assert logins(server) == (2 if "ProxyJump" in way else 1)  # of the ssh program, and then of midstream
    SshHost("good", server.config).connect()


@pytest.mark.skipif(sshd_version() < (9, 8), reason="PerSourcePenalties need OpenSSH 9.8 or newer")
def test_penalties_of_a_real_server_are_named(lab: Lab) -> None:
    """One failed login is enough here."""
    server = lab.host("good", sshd="PerSourcePenalties authfail:60s min:1s\n")
    accepted = (server.directory / "authorized_keys").read_text()
    (server.directory / "authorized_keys").write_text("")
    assert "accepts none of our keys" in refusal(server).message
    (server.directory / "authorized_keys").write_text(accepted)
    failed_logins.forget()
    deadline = time.monotonic() + PATIENCE
    message = ""
    while not message:  # until the server has seen that the process of the failed login has exited
        assert time.monotonic() < deadline
        host = SshHost("gpu1", server.config)
        try:
            host.connect()
        except HostError as error:
            message = error.message
        host.close()
    assert "PerSourcePenalties" in message
