"""Comparison with plain ``ssh``: midstream accepts what it accepts.

Or its error names the option that is not supported.

Left out: PKCS#11 and FIDO keys, which need a device.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paramiko.hostkeys import HostKeys

from midstream.errors import MidstreamError
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.prompter import PROMPTS, NoPrompter
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import SSHD, Lab, SshServer, make_key, sshd_version
from support.loopback import free_port
from support.ssh_setups import FULL, SETUPS, SHELLS, Setup

pytestmark = pytest.mark.system

RELAY = """\
import array, os, socket, sys, threading
*passing, host, port = sys.argv[1:]
far = socket.create_connection((host, int(port)))
if passing:
    socket.send_fds(socket.socket(fileno=1), [b"x"], [far.fileno()])
    sys.exit()
def out():
    while data := far.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    far.sendall(data)
"""
# One of each kind; the other set-ups are drawn.
ALWAYS = {
    "agent-certificate-file-only", "agent-certificate-on-disk-only", "agent-public-key", "bind-interface", "chacha",
    "check-host-ip", "connect-timeout", "family-inet", "include", "jump", "key-rsa_pkcs8", "known-alias",
    "known-authority", "known-command-tokens", "known-global", "match-exec", "open-connection", "proxy-bash",
    "proxy-passes-socket", "revoked", "shell-dash", "strict-no", "two-keys",
}  # fmt: skip
# Prints the key for the names that ssh asks for, and only if it is called as ssh_config(5) says.
KNOWN = """\
import sys
reason, name, kind, blob, alias = sys.argv[1:]
assert alias == "gpu" and (reason, kind, blob) == ("ORDER", "NONE", "NONE") or reason in ("HOSTNAME", "ADDRESS")
assert reason == "ORDER" or kind.startswith("ssh-") or kind.startswith("ecdsa-")
print(open(sys.argv[0].replace("known.py", "known_hosts")).read())
"""


@dataclass
class Place:
    """A server whose keys, agents and files the set-ups name."""

    server: SshServer
    values: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def config(self, setup: Setup) -> Path:
        file = self.server.directory / f"config-{setup.name}"
        file.write_text(setup.config.format_map({**self.values, "config": str(file), "free": str(free_port())}))
        return file

    def environment(self, setup: Setup) -> dict[str, str]:
        return {name: value.format_map(self.values) for name, value in setup.environment}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if not SSHD or not shutil.which("ssh-agent"):
        pytest.skip("no OpenSSH: apt-get install openssh-server openssh-client")
    lab = Lab(tmp_path_factory.mktemp("lab"))
    directory = lab.directory / "gpu"
    two_keys = free_port()
    rsa, authority = make_key(lab.directory / "host_rsa", kind="rsa"), make_key(lab.directory / "authority")
    extra = f"Port {two_keys}\nHostKey {directory}/host_key\nHostKey {rsa}\nTrustedUserCAKeys {authority}.pub\n"
    extra += "AllowTcpForwarding yes\nLogLevel ERROR\n"
    if sshd_version() >= (9, 8):
        extra += "PerSourcePenalties no\n"  # some set-ups are refused, and all have one address
    server = lab.host("gpu", sshd=extra)
    server.stop()
    place = Place(server, {"dir": str(directory), "port": str(server.port), "two_keys": str(two_keys)})
    # The path of a socket has at most 107 characters, of which ssh adds 57.
    place.values |= {"user": getpass.getuser(), "python": sys.executable, "short": tempfile.mkdtemp(prefix="ssh")}
    try:
        _make_user_keys(directory, authority)
        _make_host_keys(place, rsa, authority)
        with (directory / "sshd_config").open("a") as file:
            file.write(f"HostCertificate {directory}/host_key-cert.pub\n")
            file.write(f"Match LocalPort {two_keys}\n  AuthenticationMethods publickey,publickey\n")
        server.start()
        _start_agents(place)
        master = ["ssh", "-F", str(place.config(Setup("master", SETUPS_PLAIN))), "-MNf", "-S", f"{directory}/master"]
        subprocess.run(
            [*master, "gpu"], check=True, stdin=subprocess.DEVNULL, capture_output=False, stderr=subprocess.DEVNULL
        )
        yield place
        subprocess.run([*master[:3], "-S", f"{directory}/master", "-O", "exit", "gpu"], capture_output=True, check=True)
    finally:
        shutil.rmtree(place.values["short"])
        for process in place.processes:
            process.terminate()
            process.wait(60)
        lab.close()


SETUPS_PLAIN = next(setup.config for setup in SETUPS if setup.name == "plain")


def _make_user_keys(directory: Path, authority: Path) -> None:
    authorized = [(directory / "user_key.pub").read_text()]

    def make(name: str, kind: str, *options: str, passphrase: str = "", allowed: bool = True) -> Path:
        file = directory / name
        argv = ["ssh-keygen", "-q", "-t", kind, *options, "-N", passphrase, "-C", name, "-f", str(file)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        if allowed:
            authorized.append(file.with_name(f"{name}.pub").read_text())
        return file

    def certify(file: Path) -> Path:
        argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", getpass.getuser(), f"{file}.pub"]
        subprocess.run(argv, check=True)
        return Path(f"{file}-cert.pub")

    for name, kind, *options in (
        ("rsa", "rsa", "-b", "2048"),
        ("ecdsa", "ecdsa"),
        ("ecdsa521", "ecdsa", "-b", "521"),
        ("rsa_pem", "rsa", "-b", "2048", "-m", "PEM"),
        ("ecdsa_pem", "ecdsa", "-m", "PEM"),
        ("rsa_pkcs8", "rsa", "-b", "2048", "-m", "PKCS8"),
        ("ecdsa_pkcs8", "ecdsa", "-m", "PKCS8"),
        ("agent_key", "ed25519"),
        ("a key", "ed25519"),
    ):
        make(name, kind, *options)
    make("locked", "ed25519", passphrase="open sesame")
    make("other", "ed25519", allowed=False)
    for kind in ("ed25519", "rsa", "ecdsa"):
        certify(make(f"{kind}_certified", kind, allowed=False))
    certify(make("agent_certified", "ed25519", allowed=False))
    certify(make("apart_", "ed25519", allowed=False)).rename(directory / "apart-cert.pub.moved")
    (directory / "apart_").rename(directory / "apart")
    (directory / "apart_.pub").rename(directory / "apart.pub")
    (directory / "apart-cert.pub.moved").rename(directory / "apart-cert.pub")
    shutil.copy(directory / "user_key", directory / "gpu-key")
    for each in SHELLS:
        program = f"{each} sh" if each == "busybox" else each
        key = make(f"shell_{each}", "ed25519", allowed=False).with_name(f"shell_{each}.pub").read_text()
        authorized.append(f'command="exec {program} -c \\"$SSH_ORIGINAL_COMMAND\\"" {key}')
    (directory / "authorized_keys").write_text("".join(authorized))
    (directory / "relay.py").write_text(RELAY)
    (directory / "known.py").write_text(KNOWN)


def _make_host_keys(place: Place, rsa: Path, authority: Path) -> None:
    directory, port = place.server.directory, place.server.port
    plain = " ".join((directory / "host_key.pub").read_text().split()[:2])
    other = " ".join(rsa.with_suffix(".pub").read_text().split()[:2])
    names = f"[127.0.0.1]:{port},[localhost]:{port},[127.0.0.1]:{place.values['two_keys']},certified"
    for name, text in {
        "known_hosts": f"{names} {plain}\n",
        "known hosts": f"{names} {plain}\n",
        "known_hashed": f"{HostKeys.hash_host(f'[127.0.0.1]:{port}')} {plain}\n",
        "known_plain": f"127.0.0.1 {plain}\n",
        "known_alias": f"the-gpu {plain}\n",
        "known_rsa": f"{names} {other}\n",
        "known_both": f"{names} {plain}\n{names} {other}\n",
        "known_authority": f"@cert-authority cert* {authority.with_suffix('.pub').read_text()}",
    }.items():
        (directory / name).write_text(text)
    (directory / "options").write_text(f"HostName 127.0.0.1\nPort {port}\n" + OPTIONS.format(dir=directory))
    (directory / "included").write_text(f"Host gpu\nHostName 127.0.0.1\nPort {port}\n" + OPTIONS.format(dir=directory))
    shutil.copy(directory / "user_key", directory / f"gpu-{port}")
    argv = ["ssh-keygen", "-q", "-s", str(authority), "-I", "gpu", "-h", "-n", "certified"]
    subprocess.run([*argv, str(directory / "host_key.pub")], check=True)


OPTIONS = "IdentityFile {dir}/user_key\nIdentitiesOnly yes\nUserKnownHostsFile {dir}/known_hosts\n"


def _start_agents(place: Place) -> None:
    directory = place.server.directory
    answerer = directory / "ask"
    answerer.write_text("#!/bin/sh\necho open sesame\n")
    answerer.chmod(0o700)
    others = [make_key(directory / f"another{number}") for number in range(7)]
    ours = [directory / name for name in ("agent_key", "agent_certified", "locked")]
    for name, keys in (("agent", ours), ("agents", [*others, ours[0]])):
        socket = directory / f"{name}.sock"
        place.processes.append(subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL))
        place.values[name] = str(socket)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(answerer), "DISPLAY": ":0"}
        environment["SSH_ASKPASS_REQUIRE"] = "force"
        while subprocess.run(["ssh-add", "-l"], env=environment, capture_output=True).returncode == 2:
            assert place.processes[-1].poll() is None  # it does not listen yet
        # -k: keys alone; a certificate stays on the disk.
        argv = ["ssh-add", "-q", "-k", *map(str, keys)]
        subprocess.run(argv, check=True, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    for file in ours[:2]:
        file.unlink()


def _printed_address(config: Path, address: str) -> tuple[str, ...]:
    """Return user, host name and port, as ``ssh -G`` prints them."""
    argv = ["ssh", "-F", str(config), "-G", address]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    values = dict(line.split(" ", 1) for line in printed.splitlines() if " " in line)
    return values["user"], values["hostname"], values["port"]


@pytest.mark.parametrize(
    "setup",
    [pytest.param(each, id=each.name, marks=() if each.name in ALWAYS else pytest.mark.drawn) for each in SETUPS],
)
def test_midstream_and_ssh_agree(place: Place, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    config = place.config(setup)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for name, value in place.environment(setup).items():
        monkeypatch.setenv(name, value)
    argv = ["ssh", "-F", str(config), "-o", "BatchMode=yes", setup.address, "exit 0"]
    theirs = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    host = SshHost("gpu", SshHostConfig(address=setup.address, ssh_config=str(config), root="/tmp/r"))
    error = ""
    try:
        with PROMPTS.use(NoPrompter()):
            host.connect()
        resolved = host.settings
        assert _printed_address(config, setup.address) == (resolved.user, resolved.hostname, str(resolved.port))
    except MidstreamError as failed:
        error = str(failed)
    finally:
        host.close()
        _, said = theirs.communicate(timeout=60)
    assert (theirs.returncode != 0) == setup.refused, said
    if setup.refused:
        assert setup.unsupported in error
        assert error
    elif setup.unsupported:
        assert setup.unsupported in error
    else:
        assert not error


# In a network of its own, with a name for an address that is not a loopback address: ssh checks no others.
CHECK_HOST_IP = """\
mount --bind {dir}/hosts /etc/hosts
ip link set lo up
ip address add 198.51.100.7/32 dev lo
{sshd} -f {dir}/far_config -o ListenAddress=198.51.100.7
ssh -F {dir}/far -o BatchMode=yes -o ConnectionAttempts=20 gpu true && echo ssh
{python} -c 'import sys
from midstream.fleet.fleet import SshHostConfig
from midstream.hosts.ssh.ssh_host import SshHost
host = SshHost("gpu", SshHostConfig(address="gpu", ssh_config=sys.argv[1], root="/tmp/r"))
host.connect()
host.close()' {dir}/far && echo midstream
kill $(cat {dir}/far.pid)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="root, and unshare of util-linux")
@pytest.mark.parametrize("same", [True, False])
def test_check_host_ip_compares_the_address(place: Place, same: bool) -> None:
    directory, port = place.server.directory, place.values["port"]
    key = " ".join((directory / "host_key.pub").read_text().split()[:2])
    other = key if same else " ".join((directory / "other.pub").read_text().split()[:2])
    (directory / "hosts").write_text("127.0.0.1 localhost\n198.51.100.7 far.test\n")
    (directory / "known_far").write_text(f"[far.test]:{port} {key}\n[198.51.100.7]:{port} {other}\n")
    text = FULL.replace("127.0.0.1", "far.test").replace("known_hosts", "known_far") + "  CheckHostIP yes\n"
    (directory / "far").write_text(text.format_map(place.values))
    server = (directory / "sshd_config").read_text()
    left_out = ("ListenAddress", "PidFile", "HostCertificate")  # beside a certificate ssh compares no address
    without = "".join(line for line in server.splitlines(True) if not line.startswith(left_out))
    (directory / "far_config").write_text(f"PidFile {directory}/far.pid\n{without}")
    script = CHECK_HOST_IP.format_map({**place.values, "sshd": SSHD})
    done = subprocess.run(["unshare", "-mn", "sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == (["ssh", "midstream"] if same else []), done.stderr
    assert same or "is another one than that of its address 198.51.100.7" in done.stderr


def test_there_are_set_ups_of_each_kind() -> None:
    names = {setup.name for setup in SETUPS}
    assert len(names) == len(SETUPS) >= 80
    assert ALWAYS - names <= {"shell-dash"}
