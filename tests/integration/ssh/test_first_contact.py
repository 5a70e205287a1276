"""First contact with a host: prompts, known_hosts, a shell in the terminal."""

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
from midstream.hosts.host_pool import HostPool
from midstream.hosts.prompter import PROMPTS, HostKeyPrompt
from midstream.hosts.ssh.ssh_host import SshHost
from midstream.watch.snapshot import DOWN, LIVE
from midstream.watch.watcher import take_snapshot
from simulators.sshd import Lab, SshServer, make_key
from support.prepared_prompter import Answers
from support.terminals import TerminalProgram

CONNECT = """
import json, sys
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.ssh.ssh_host import SshHost
machine = SshHost("gpu1", SshHostConfig(**json.loads(sys.argv[1])))
try:
    machine.connect()
    print("connected", machine.run(["echo", "fine"]).stdout)
except Exception as error:
    print("refused:", error)
    sys.exit(3)
"""
SHELL = """
import json, sys
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.host_pool import open_host
sys.exit(open_host("gpu1", SshHostConfig(**json.loads(sys.argv[1]))).open_shell())
"""


# The same in a terminal that is resized while a key is sent.
RESIZED_SHELL = (
    """
import os, signal
import paramiko
send = paramiko.Transport._send_message
def resized(transport, message):
    if message.asbytes()[0] == 94:  # data of a channel
        os.kill(os.getpid(), signal.SIGWINCH)
    send(transport, message)
paramiko.Transport._send_message = resized
"""
    + SHELL
)


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    PROMPTS.reset()


@pytest.fixture
def server(server: SshServer) -> SshServer:
    """Delete the server's known_hosts file."""
    server.known_hosts.unlink()
    return server


@pytest.fixture
def programs() -> Iterator[list[TerminalProgram]]:
    made: list[TerminalProgram] = []
    yield made
    for each in made:
        each.close()


def in_terminal(programs: list[TerminalProgram], code: str, server: SshServer, **env: str) -> TerminalProgram:
    programs.append(TerminalProgram(code, json.dumps(asdict(server.config)), env=env))
    return programs[-1]


def test_first_contact_shows_fingerprint(server: SshServer) -> None:
    prompter = Answers(accepts=True)
    with PROMPTS.use(prompter):
        SshHost("gpu1", server.config).connect()
    file = str(server.known_hosts)
    assert prompter.host_keys == [
        HostKeyPrompt("gpu1", f"[127.0.0.1]:{server.port}", "ssh-ed25519", server.fingerprint, file)
    ]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    SshHost("gpu1", server.config).connect()  # without a prompt
    ssh = ["ssh", "-F", str(server.directory / "ssh_config"), "-o", "BatchMode=yes", "gpu1", "true"]
    subprocess.run(ssh, check=True, capture_output=True, stdin=subprocess.DEVNULL)  # ssh accepts the entry, too


def test_declined_host_key_is_remembered_and_not_written(server: SshServer) -> None:
    prompter = Answers(accepts=False)
    with PROMPTS.use(prompter):
        for _ in range(3):
            with pytest.raises(HostError, match=r"is not known .* was not accepted"):
                SshHost("gpu1", server.config).connect()
        assert len(prompter.host_keys) == 1
        assert not server.known_hosts.exists()
        PROMPTS.reset()
        with pytest.raises(HostError):
            SshHost("gpu1", server.config).connect()
        assert len(prompter.host_keys) == 2


def test_parallel_connections_prompt_once(server: SshServer) -> None:
    prompter = Answers(accepts=True)
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            SshHost("gpu1", server.config).connect()
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failed.append(error)

    with PROMPTS.use(prompter):
        threads = [threading.Thread(target=connect) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(prompter.host_keys) == 1
    assert len(server.known_hosts.read_text().splitlines()) == 1


def test_first_contact_without_prompter_has_working_hint(server: SshServer) -> None:
    with pytest.raises(HostError, match="is not known") as refused:
        SshHost("gpu1", server.config).connect()
    assert server.fingerprint in refused.value.message
    subprocess.run(["sh", "-c", refused.value.hint.split(": ", 1)[1]], check=True, capture_output=True)
    SshHost("gpu1", server.config).connect()


def test_hashed_known_hosts_stays_hashed(server: SshServer) -> None:
    config = server.directory / "ssh_config"
    config.write_text(config.read_text() + "  HashKnownHosts yes\n")
    with PROMPTS.use(Answers(accepts=True)):
        SshHost("gpu1", server.config).connect()
    assert server.known_hosts.read_text().startswith("|1|")
    SshHost("gpu1", server.config).connect()


def test_changed_host_key_is_refused_without_prompt(server: SshServer, tmp_path: Path) -> None:
    kind, key = Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    prompter = Answers(accepts=True)
    with PROMPTS.use(prompter), pytest.raises(HostError, match="has CHANGED") as refused:
        SshHost("gpu1", server.config).connect()
    assert f"{server.known_hosts}:1" in refused.value.message
    assert server.fingerprint in refused.value.message
    assert prompter.host_keys == []
    words = refused.value.hint.removeprefix("only if you know why: ").replace(", then", " &&")
    subprocess.run(["sh", "-c", words], check=True, capture_output=True)
    SshHost("gpu1", server.config).connect()


def test_host_key_of_other_type_counts_as_changed(server: SshServer, tmp_path: Path) -> None:
    kind, key = Path(f"{make_key(tmp_path / 'other', kind='rsa')}.pub").read_text().split()[:2]
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    with PROMPTS.use(Answers(accepts=True)), pytest.raises(HostError, match="has CHANGED"):
        SshHost("gpu1", server.config).connect()


def test_snapshot_waits_for_open_prompt(server: SshServer) -> None:
    decided = threading.Event()

    class SlowAnswers(Answers):
        def accept(self, contact: HostKeyPrompt) -> bool | None:
            del contact
            assert not decided.wait(8.5)
            return True

    fleet = Fleet(hosts={"gpu1": server.config})
    hosts = HostPool(fleet)
    with PROMPTS.use(SlowAnswers()):
        [host] = take_snapshot(hosts, timeout=8.0).hosts
    hosts.close()
    assert host.link == LIVE, host.error


def test_snapshot_reports_declined_host_key(server: SshServer) -> None:
    fleet = Fleet(hosts={"gpu1": server.config})
    with PROMPTS.use(Answers(accepts=False)):
        [host] = take_snapshot(HostPool(fleet), timeout=30.0).hosts
    assert host.link == DOWN
    assert server.fingerprint in host.error


def test_terminal_prompt_accepts_host_key(server: SshServer, programs: list[TerminalProgram]) -> None:
    terminal = in_terminal(programs, CONNECT, server)
    terminal.expect("first contact with gpu1")
    terminal.expect(server.fingerprint.replace("+", r"\+"))
    terminal.type("hm\n")
    terminal.expect("Please type yes, no")
    terminal.type("yes\n")
    terminal.expect("connected b'fine")
    assert terminal.wait() == 0
    assert server.known_hosts.exists()


def test_terminal_prompt_hides_passphrase(server: SshServer, programs: list[TerminalProgram], tmp_path: Path) -> None:
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
    terminal.expect("try again")
    terminal.type("open sesame\n")
    terminal.expect("connected b'fine")
    assert terminal.wait() == 0
    assert "sesame" not in terminal.text
    assert "wrong" not in terminal.text


@pytest.mark.parametrize("with_ssh", [True, False])
def test_shell_on_host_has_terminal(lab: Lab, programs: list[TerminalProgram], tmp_path: Path, with_ssh: bool) -> None:
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


def test_terminal_that_is_resized_while_keys_are_sent(
    lab: Lab, programs: list[TerminalProgram], tmp_path: Path
) -> None:
    terminal = in_terminal(programs, RESIZED_SHELL, lab.host("gpu1"), PATH=str(tmp_path))  # without an ssh program
    terminal.expect("[$#] ")
    terminal.type("echo an''swer\n")
    terminal.expect("answer")
    terminal.type("exit 7\n")
    assert terminal.wait() == 7
