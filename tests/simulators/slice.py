"""A TPU slice of the lab: sshd servers behind a node of the lab's Cloud TPU service.

Each worker listens at an address of its own and at the same port, and has a home of its own, as machines have; a key
that is written to the node's metadata is let in by all of them, as guest agents do.
"""

from __future__ import annotations

import getpass
import itertools
import json
import os
import random
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from midstream_engine import records
from simulators.sshd import Lab, SshServer, environment
from simulators.tpu_nodes import Worker

_networks = itertools.count(1)


class Slice:
    """``count`` workers of a node called ``name``. ``finds``: what their sessions find in the environment beside their
    home; ``port``: that of a slice whose place they take, by default one that is free."""

    def __init__(self, lab: Lab, name: str, count: int, finds: Mapping[str, str] | None = None, port: int = 0):
        self.name = name
        network = f"127.{os.getpid() % 200 + 20}.{next(_networks)}"
        addresses = [f"{network}.{index + 1}" for index in range(count)]
        self.port = port or _free_port(addresses)
        self.servers: list[SshServer] = [
            lab.host(
                f"{name}-{index}",
                sshd=environment(HOME=lab.directory / f"{name}-{index}", **(finds or {})),
                address=address,
                port=self.port,
            )
            for index, address in enumerate(addresses)
        ]
        for server in self.servers:
            (server.directory / "authorized_keys").write_text("")  # nobody is let in yet
        self.workers = [
            Worker(address, address, _host_key(server), f"t1v-n-lab-w-{index}", self._let_in(server))
            for index, (address, server) in enumerate(zip(addresses, self.servers, strict=True))
        ]
        self.roots = [server.directory / ".midstream" for server in self.servers]

    def _let_in(self, server: SshServer) -> Callable[[Mapping[str, str]], None]:
        def told(metadata: Mapping[str, str]) -> None:
            lines = (line.partition(":") for line in metadata.get("ssh-keys", "").splitlines())
            keys = [key for user, _, key in lines if user == getpass.getuser()]
            (server.directory / "authorized_keys").write_text("".join(f"{key}\n" for key in keys))

        return told

    def go_away(self) -> None:
        """As machines that are taken back: their servers end, what holds connections, and every engine at once."""
        for server in self.servers:
            server.stop()
        self.kill_engines()

    def kill_engines(self) -> None:
        """What stands beside those that midstream started there: they end with it."""
        for root in self.roots:
            for launched in root.glob("runs/*/attempts/*/launch*.json"):
                identity = records.ProcessIdentity.from_json(json.loads(launched.read_text()))
                if records.is_running(identity):
                    os.kill(identity.pid, signal.SIGKILL)


def _host_key(server: SshServer) -> dict[str, str]:
    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    return {kind: key}


def _free_port(addresses: list[str]) -> int:
    """One that is free at all of them."""
    for _ in range(50):
        port = random.randrange(20000, 60000)
        sockets = []
        try:
            for address in addresses:
                sockets.append(socket.socket())
                sockets[-1].bind((address, port))
            return port
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    pytest.fail("no port is free at all addresses")


def target_text(name: str, node: Slice, key: Path, **more: str) -> str:
    """The fleet file's entry of such a slice."""
    words = {
        "type": "tpu", "project": "lab", "zone": "here-a", "name": node.name, "port": str(node.port),
        "accelerator_type": "v3-32", "runtime_version": "tpu-ubuntu2204-base", "identity_file": str(key), **more,
    }  # fmt: skip
    return f"  {name}: {{{', '.join(f'{key}: {value}' for key, value in words.items())}}}\n"
