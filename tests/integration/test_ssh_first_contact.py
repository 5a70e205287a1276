"""Meeting a host for the first time: what is shown, who is asked, what is written down; a shell in the terminal."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.prompter import PROMPTS, FirstContact
from midstream.hosts.ssh.ssh_host import SshMachine
from midstream.watch.snapshot import DOWN, LIVE
from midstream.watch.watcher import look_once
from simulators.sshd import Lab, SshServer, make_key
from support.people import Answers
from support.terminals import TerminalProgram

CONNECT = """
import json, sys
from midstream.fleet.fleet import SshHost
from midstream.hosts.ssh.ssh_host import SshMachine
machine = SshMachine("gpu1", SshHost(**json.loads(sys.argv[1])))
try:
    machine.connect()
    print("connected", machine.run(["echo", "fine"]).stdout)
except Exception as error:
    print("refused:", error)
    sys.exit(3)
"""
SHELL = """
import json, sys
from midstream.fleet.fleet import SshHost
from midstream.hosts.shell import open_shell
sys.exit(open_shell("gpu1", SshHost(**json.loads(sys.argv[1]))))
"""


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    PROMPTS.forget()


@pytest.fixture
def server(lab: Lab) -> SshServer:
    """A host that nobody has met yet."""
    made = lab.host("gpu1", devices=1)
    made.known_hosts.unlink()
    return made


@pytest.fixture
def programs() -> Iterator[list[TerminalProgram]]:
    made: list[TerminalProgram] = []
    yield made
    for each in made:
        each.close()


def in_terminal(programs: list[TerminalProgram], code: str, server: SshServer, **env: str) -> TerminalProgram:
    programs.append(TerminalProgram(code, json.dumps(asdict(server.config)), env=env))
    return programs[-1]


def test_a_person_is_shown_the_fingerprint_and_asked(server: SshServer):
    person = Answers(accepts=True)
    with PROMPTS.of(person):
        SshMachine("gpu1", server.config).connect()
    file = str(server.known_hosts)
    assert person.contacts == [
        FirstContact("gpu1", f"[127.0.0.1]:{server.port}", "ssh-ed25519", server.fingerprint, file)
    ]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    SshMachine("gpu1", server.config).connect()  # nobody is asked now
    ssh = ["ssh", "-F", str(server.directory / "ssh_config"), "-o", "BatchMode=yes", "gpu1", "true"]
    subprocess.run(ssh, check=True, capture_output=True, stdin=subprocess.DEVNULL)  # and ssh trusts it too


def test_who_says_no_is_not_asked_again_and_nothing_is_written(server: SshServer):
    person = Answers(accepts=False)
    with PROMPTS.of(person):
        for _ in range(3):
            with pytest.raises(HostError, match=r"is not known .* was not accepted"):
                SshMachine("gpu1", server.config).connect()
        assert len(person.contacts) == 1
        assert not server.known_hosts.exists()
        PROMPTS.forget()
        with pytest.raises(HostError):
            SshMachine("gpu1", server.config).connect()
        assert len(person.contacts) == 2, "unless the person wants to"


def test_many_connections_to_a_new_host_ask_once(server: SshServer):
    person = Answers(accepts=True)
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            SshMachine("gpu1", server.config).connect()
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)

    with PROMPTS.of(person):
        threads = [threading.Thread(target=connect) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(person.contacts) == 1
    assert len(server.known_hosts.read_text().splitlines()) == 1


def test_headless_refuses_and_the_line_mends_it(server: SshServer):
    with pytest.raises(HostError, match="is not known") as refused:
        SshMachine("gpu1", server.config).connect()
    assert server.fingerprint in refused.value.message
    subprocess.run(["sh", "-c", refused.value.hint.split(": ", 1)[1]], check=True, capture_output=True)
    SshMachine("gpu1", server.config).connect()


def test_a_hashed_file_stays_hashed(server: SshServer):
    config = server.directory / "ssh_config"
    config.write_text(config.read_text() + "  HashKnownHosts yes\n")
    with PROMPTS.of(Answers(accepts=True)):
        SshMachine("gpu1", server.config).connect()
    assert server.known_hosts.read_text().startswith("|1|")
    SshMachine("gpu1", server.config).connect()


def test_a_key_that_changed_is_refused_and_nobody_is_asked(server: SshServer, tmp_path: Path):
    kind, key = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    person = Answers(accepts=True)
    with PROMPTS.of(person), pytest.raises(HostError, match="has CHANGED") as refused:
        SshMachine("gpu1", server.config).connect()
    assert f"{server.known_hosts}:1" in refused.value.message
    assert server.fingerprint in refused.value.message
    assert person.contacts == []
    words = refused.value.hint.removeprefix("only if you know why: ").replace(", then", " &&")
    subprocess.run(["sh", "-c", words], check=True, capture_output=True)
    SshMachine("gpu1", server.config).connect()


def test_another_kind_of_key_than_the_known_one_is_a_change(server: SshServer, tmp_path: Path):
    kind, key = Path(f"{make_key(tmp_path / 'other', kind='rsa')}.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    with PROMPTS.of(Answers(accepts=True)), pytest.raises(HostError, match="has CHANGED"):
        SshMachine("gpu1", server.config).connect()


def test_a_look_waits_for_a_person_who_thinks(server: SshServer):
    decided = threading.Event()

    class Thinker(Answers):
        def accept(self, contact: FirstContact) -> bool | None:
            assert not decided.wait(8.5)
            return True

    fleet = Fleet(hosts={"gpu1": server.config})
    hosts = Hosts(fleet)
    with PROMPTS.of(Thinker()):
        [host] = look_once(fleet, hosts, timeout=8.0).hosts
    hosts.close()
    assert host.link == LIVE, host.error


def test_a_fleet_screen_is_told_of_a_host_that_was_not_accepted(server: SshServer):
    fleet = Fleet(hosts={"gpu1": server.config})
    with PROMPTS.of(Answers(accepts=False)):
        [host] = look_once(fleet, Hosts(fleet), timeout=30.0).hosts
    assert host.link == DOWN
    assert server.fingerprint in host.error


def test_the_terminal_asks_and_yes_is_written_down(server: SshServer, programs: list[TerminalProgram]):
    terminal = in_terminal(programs, CONNECT, server)
    terminal.expect("first contact with gpu1")
    terminal.expect(server.fingerprint.replace("+", r"\+"))
    terminal.type("hm\n")
    terminal.expect("Please type yes, no")
    terminal.type("yes\n")
    terminal.expect("connected b'fine")
    assert terminal.wait() == 0
    assert server.known_hosts.exists()


def test_the_terminal_asks_for_a_passphrase_and_does_not_show_it(
    server: SshServer, programs: list[TerminalProgram], tmp_path: Path
):
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    (server.directory / "authorized_keys").write_text(Path(f"{key}.pub").read_text())
    server.configure(
        "Host gpu1\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile {dir}/known_hosts\n"
        f"  IdentityFile {key}\n  IdentitiesOnly yes\n"
    )
    terminal = in_terminal(programs, CONNECT, server)
    terminal.expect("typ|yes")
    terminal.type("yes\n")
    terminal.expect(f"passphrase of {key}")
    terminal.type("wrong\n")
    terminal.expect("once more")
    terminal.type("open sesame\n")
    terminal.expect("connected b'fine")
    assert terminal.wait() == 0
    assert "sesame" not in terminal.text
    assert "wrong" not in terminal.text


@pytest.mark.parametrize("with_ssh", [True, False])
def test_a_shell_on_the_host_has_the_terminal(
    lab: Lab, programs: list[TerminalProgram], tmp_path: Path, with_ssh: bool
):
    server = lab.host("gpu1")
    (tmp_path / "bin").mkdir()
    terminal = in_terminal(programs, SHELL, server, **({} if with_ssh else {"PATH": str(tmp_path / "bin")}))
    terminal.expect("[$#] ")
    terminal.type("PS1='ready''> '; stty size\n")
    terminal.expect("ready> ")
    terminal.type('echo "port is ${SSH_CONNECTION##* }"\n')
    terminal.expect(f"port is {server.port}")
    terminal.type("exit 7\n")
    assert terminal.wait() == 7
