"""A cluster of SkyPilot is a target under its own name; its host keys are checked, whatever its file says."""

from __future__ import annotations

import getpass
import re
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.rented_machines import with_rented
from midstream.hosts.host_pool import HostPool
from midstream.hosts.prompter import PROMPTS
from simulators.sshd import Lab, SshServer
from support.command_line import midstream
from support.paths import FIXTURES, REPOSITORY
from support.prepared_prompter import Answers

pytestmark = pytest.mark.system

SKYPILOT_PYTHON = REPOSITORY / ".venv/skypilot/bin/python"
RELAY = """\
import os, socket, sys, threading
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def out():
    while data := far.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    far.sendall(data)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which SkyPilot has written no file yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    (tmp_path / ".sky/generated/ssh").mkdir(parents=True)
    PROMPTS.reset()
    return tmp_path


def write(home: Path, cluster: str, *servers: SshServer) -> None:
    """Write SkyPilot's file of a cluster whose machines are these servers."""
    text = (FIXTURES / "skypilot" / cluster).read_text().replace("{home}/key", str(servers[0].user_key))
    text = re.sub(r"User \w+", f"User {getpass.getuser()}", text)
    (home / "relay.py").write_text(RELAY)
    blocks = text.split("# Added by sky")[1:]
    for number, server in enumerate(servers):
        if "ProxyCommand" in blocks[number]:  # it ends at the machine, whose address is that of all
            command = f"ProxyCommand {sys.executable} {home}/relay.py {server.port}\n"
            blocks[number] = re.sub(r"ProxyCommand .*\n", command, blocks[number])
        else:
            blocks[number] = re.sub(r"HostName .*", "HostName 127.0.0.1", blocks[number])
            blocks[number] = blocks[number].replace("Port 22\n", f"Port {server.port}\n")
    (home / ".sky/generated/ssh" / cluster).write_text("".join(f"# Added by sky{block}" for block in blocks))


def test_cluster_is_checked_under_its_name(lab: Lab, home: Path) -> None:
    server = lab.host("machine")
    write(home, "single", server)
    fleet = lab.fleet_file()
    unknown = midstream("--fleet", fleet, "--check", "single")
    known_hosts = home / "state/known_hosts/skypilot-single"
    assert unknown.code != 0
    assert f">> {known_hosts}" in unknown.stderr + unknown.stdout, (unknown.stdout, unknown.stderr)
    known_hosts.write_text((server.directory / "known_hosts").read_text())
    checked = midstream("--fleet", fleet, "--check", "single", "--json")
    answers = [check for check in checked.of("check") if check["name"] == "answers"]
    assert [(check["host"], check["state"]) for check in answers] == [("single", "pass")], checked.stderr
    assert "single" not in fleet.read_text(), "the fleet file is not changed"
    wrong = midstream("--fleet", fleet, "--check", "singel")
    assert wrong.code == 2


@pytest.mark.parametrize("cluster", ["box", "pods"])
def test_machines_of_one_address_keep_their_keys(lab: Lab, home: Path, cluster: str) -> None:
    first, second = lab.host("first"), lab.host("second")
    with (second.directory / "authorized_keys").open("a") as file:
        file.write((first.directory / "authorized_keys").read_text())
    write(home, cluster, first, second)
    fleet = with_rented(parse_fleet("hosts: {here: {type: local}}"), [cluster])
    prompter = Answers(accepts=True)
    with PROMPTS.use(prompter):
        for _ in range(2):
            hosts = HostPool(fleet)
            for name in fleet.target(cluster).hosts:
                hosts.get(name)
            hosts.close()
            PROMPTS.reset()
    assert [each.fingerprint for each in prompter.host_keys] == [first.fingerprint, second.fingerprint]


@pytest.mark.slow
@pytest.mark.skipif(not SKYPILOT_PYTHON.exists(), reason="no SkyPilot: make test-skypilot")
def test_fixtures_are_what_skypilot_writes(tmp_path: Path) -> None:
    home = tmp_path / "another"
    home.mkdir()
    argv = [str(SKYPILOT_PYTHON), str(FIXTURES / "skypilot/generate.py"), str(home)]
    subprocess.run(argv, check=True, capture_output=True)
    written = {file.name: file for file in (home / ".sky/generated/ssh").iterdir()}
    assert set(written) == {"single", "train", "box", "pods"}
    for name, file in {**written, "ssh_config": home / ".ssh/config"}.items():
        assert file.read_text().replace(str(home), "{home}") == (FIXTURES / "skypilot" / name).read_text()
