"""Real SSH servers on loopback: each a plain sshd process with its own keys, home and port."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet, HostConfig, LocalHostConfig, SshHostConfig
from support.command_line import COMPILED
from support.engines.engine_runs import QUICK
from support.loopback import free_port

SSHD = next((path for path in ("/usr/sbin/sshd", shutil.which("sshd") or "") if path and os.path.exists(path)), "")


def sshd_version() -> tuple[int, int]:
    """Return the version of this machine's SSH server: (9, 2). (0, 0) without one."""
    said = subprocess.run([SSHD, "-V"], capture_output=True, text=True).stderr if SSHD else ""
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def environment(**variables: object) -> str:
    """Return the sshd configuration line that sets the environment of sessions (the first such line counts).

    With SHLVL set, bash does not read the start-up files of the user who runs the tests (for sshd, bash reads
    ~/.bashrc at the first level only). They would take longer than the test, and may lock something.
    """
    given = {"SHLVL": "1", "PATH": os.environ["PATH"], **variables}
    return "SetEnv " + " ".join(f'"{name}={value}"' for name, value in given.items()) + "\n"


@dataclass
class SshServer:
    """A running sshd. ``config`` is the fleet entry that reaches it."""

    name: str
    directory: Path
    port: int
    config: SshHostConfig
    process: subprocess.Popen[bytes] = field(repr=False)
    address: str = "127.0.0.1"
    space: str = ""  # network namespace
    machine: str = ""  # boot and machine id, if not those of this machine

    @property
    def root(self) -> Path:
        return Path(self.config.root)

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def sessions(self) -> list[int]:
        """Return the pids of the processes that serve connections now."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    @property
    def user_key(self) -> Path:
        return self.directory / "user_key"

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its host key, as ssh-keygen prints it."""
        argv = ["ssh-keygen", "-lf", str(self.directory / "host_key.pub")]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]

    def configure(self, text: str) -> None:
        """Write another ssh_config for its fleet entry; ``{port}`` and ``{dir}`` are filled in."""
        filled = text.replace("{port}", str(self.port)).replace("{dir}", str(self.directory))
        (self.directory / "ssh_config").write_text(filled)

    def drop_connections(self) -> None:
        """Kill the processes that serve connections, as a cut link would; the server stays."""
        for pid in self.sessions():
            subprocess.run(["kill", "-9", str(pid)], check=False)

    def stop(self) -> None:
        self.drop_connections()
        self.process.terminate()
        self.process.wait(60)

    def start(self) -> None:
        """Listen again on the same port, with the same keys."""
        self.process = _start(self.directory, self.port, self.address, self.space, self.machine)


ANOTHER_MACHINE = """
mount --bind "$0" /proc/sys/kernel/random/boot_id
mount --bind "$1" /etc/machine-id
shift
exec "$@"
"""


def _start(directory: Path, port: int, address: str, space: str, machine: str = "") -> subprocess.Popen[bytes]:
    with (directory / "sshd.log").open("ab") as log:
        argv = [SSHD, "-D", "-e", "-f", str(directory / "sshd_config")]
        within = ["ip", "netns", "exec", space] if space else []
        if machine:
            ids = [directory / "boot_id", directory / "machine_id"]
            for file in ids:
                file.write_text(f"{machine}\n")
            within += ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", ANOTHER_MACHINE]
            within += map(str, ids)
        process = subprocess.Popen([*within, *argv], stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((address, port), 1):
                return process
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"sshd did not start: {(directory / 'sshd.log').read_text()[-500:]}")
            time.sleep(0.02)


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    size = ["-b", "2048"] if kind == "rsa" else []
    argv = ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


class Lab:
    """Creates servers, and stops them at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: dict[str, SshServer] = {}

    def host(
        self,
        name: str,
        devices: int | None = None,
        python: str | None = sys.executable,
        sshd: str = "",
        address: str = "127.0.0.1",
        port: int = 0,
        space: str = "",
        machine: str = "",
    ) -> SshServer:
        """Start a server that accepts a new key, and return it with a fleet entry that trusts it.

        Args:
            name: Name of the host.
            devices: Number of virtual devices in its fleet entry.
            python: Interpreter in its fleet entry.
            sshd: Further lines of its configuration, which take precedence.
            address: Address to listen on.
            port: By default a free one.
            space: Network namespace that it runs in (`cable`); by default this machine's own.
            machine: Boot and machine id that its sessions see, with pids of their own; by default this machine's.
        """
        directory = self.directory / name
        directory.mkdir(parents=True)
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)
        port = port or free_port()
        host_key, user_key = make_key(directory / "host_key"), make_key(directory / "user_key")
        (directory / "authorized_keys").write_text(user_key.with_suffix(".pub").read_text())
        kind, key = host_key.with_suffix(".pub").read_text().split()[:2]
        (directory / "known_hosts").write_text(f"[{address}]:{port} {kind} {key}\n")
        (directory / "ssh_config").write_text(
            f"Host {name}\n  HostName {address}\n  Port {port}\n  IdentityFile {user_key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {directory / 'known_hosts'}\n"
        )
        (directory / "sshd_config").write_text(
            f"{sshd}Port {port}\nListenAddress {address}\nHostKey {host_key}\n"
            f"AuthorizedKeysFile {directory / 'authorized_keys'}\nPidFile {directory / 'sshd.pid'}\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "MaxSessions 100\nMaxStartups 100\nSubsystem sftp internal-sftp\nPrintMotd no\nPrintLastLog no\n"
            f"{environment()}"
        )
        config = SshHostConfig(
            address=name,
            ssh_config=str(directory / "ssh_config"),
            root=str(directory / "root"),
            python=python,
            devices=devices,
            env=_quick(devices),
        )
        process = _start(directory, port, address, space, machine)
        server = SshServer(name, directory, port, config, process, address, space, machine)
        self.servers[name] = server
        return server

    def local(self, name: str, devices: int | None = None) -> LocalHostConfig:
        """Return a fleet entry of this machine, with a root of its own."""
        return LocalHostConfig(root=str(self.directory / name / "root"), devices=devices, env=_quick(devices))

    def fleet_file(self, **hosts: HostConfig) -> Path:
        """Write a fleet file with these hosts, as a user would."""
        lines = ["hosts:"]
        for name, config in hosts.items():
            words = {"type": "ssh" if isinstance(config, SshHostConfig) else "local", **vars(config)}
            shown = ", ".join(f"{key}: {_yaml(value)}" for key, value in words.items() if value not in (None, [], {}))
            lines.append(f"  {name}: {{{shown}}}")
        file = self.directory / "fleet.yaml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def fleet(self, **hosts: HostConfig) -> Fleet:
        from midstream.fleet.fleet_file import load_fleet

        return load_fleet(self.fleet_file(**hosts))

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()


def _quick(devices: int | None) -> dict[str, str]:
    """Return an environment for engines on virtual devices: no compiler optimization, and a shared program cache."""
    return {"XLA_FLAGS": QUICK, "JAX_COMPILATION_CACHE_DIR": COMPILED} if devices else {}


def _yaml(value: object) -> str:
    import json

    return json.dumps(value)


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Factory of servers: ``lab.host("gpu1", devices=4)``."""
    if not SSHD or not shutil.which("ssh-keygen"):
        pytest.skip("no sshd: apt-get install openssh-server")
    # Paths of keys and sockets are long enough without the test's name in them.
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


@pytest.fixture
def server(lab: Lab) -> SshServer:
    """The SSH server of host ``gpu1``, which has two devices."""
    return lab.host("gpu1", devices=2)
