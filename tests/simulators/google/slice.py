"""A simulated TPU slice: sshd servers behind a node of the simulated Cloud TPU service.

Each worker listens at its own address and the same port, and has its own home. All workers accept a key that is written
to the node's metadata, as guest agents do.
"""

from __future__ import annotations

import getpass
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from simulators.google.tpu_nodes import Worker
from simulators.sshd import Lab, SshServer, environment
from support.launched_processes import kill_launched
from support.loopback import free_port

_networks = itertools.count(1)


class Slice:
    """``count`` workers of a node called ``name``.

    ``finds``: environment of their sessions, besides their home; ``port``: by default a free one.
    """

    def __init__(self, lab: Lab, name: str, count: int, finds: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.name = name
        network = f"127.{os.getpid() % 200 + 20}.{next(_networks)}"
        addresses = [f"{network}.{index + 1}" for index in range(count)]
        self.port = port or free_port(*addresses)
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
            (server.directory / "authorized_keys").write_text("")  # no key is accepted yet
        self.workers = [
            Worker(address, address, _host_key(server), f"t1v-n-lab-w-{index}", self._set_authorized_keys(server))
            for index, (address, server) in enumerate(zip(addresses, self.servers, strict=True))
        ]
        self.roots = [server.directory / ".midstream" for server in self.servers]

    def _set_authorized_keys(self, server: SshServer) -> Callable[[Mapping[str, str]], None]:
        def set_keys(metadata: Mapping[str, str]) -> None:
            lines = (line.partition(":") for line in metadata.get("ssh-keys", "").splitlines())
            keys = [key for user, _, key in lines if user == getpass.getuser()]
            (server.directory / "authorized_keys").write_text("".join(f"{key}\n" for key in keys))

        return set_keys

    def go_away(self) -> None:
        """End the servers, their connections and every engine at the same time, as in a preemption."""
        for server in self.servers:
            server.stop()
        self.kill_engines()

    def kill_engines(self) -> None:
        """Kill the processes that midstream started there."""
        for root in self.roots:
            kill_launched(Path(root, "runs"))


def _host_key(server: SshServer) -> dict[str, str]:
    kind, key = (server.directory / "host_key.pub").read_text().split()[:2]
    return {kind: key}


def target_text(name: str, node: Slice, key: Path, **more: str) -> str:
    """Return the fleet file's entry of such a slice."""
    words = {
        "type": "tpu", "project": "lab", "zone": "here-a", "name": node.name, "port": str(node.port),
        "accelerator_type": "v3-32", "runtime_version": "tpu-ubuntu2204-base", "identity_file": str(key), **more,
    }  # fmt: skip
    return f"  {name}: {{{', '.join(f'{key}: {value}' for key, value in words.items())}}}\n"
