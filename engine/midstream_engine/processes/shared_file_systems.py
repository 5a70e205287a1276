"""Which processes share a file system: tested with files, not assumed."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass

from midstream_core.records import locked, read_bytes, write_bytes
from midstream_engine.processes.coordinator_client import CoordinatorClient

VISIBILITY_TIMEOUT = 3.0  # seconds until a file of another host must be visible: network file systems cache names
POLL_INTERVAL = 0.1


@dataclass(frozen=True)
class SharedFileSystems:
    """Groups of processes that share the run's directory.

    The lowest process of a group leads it.
    """

    process: int
    first: tuple[int, ...]  # of each process, the leader of its group
    hosts: tuple[str, ...]  # of each process, the name of its group: that of the leader's host, made unique
    directories: tuple[str, ...]  # of each process, the run's directory
    ids: tuple[str, ...] = ()  # of each process, the id of its directory of checkpoints; empty if all share one

    @property
    def spread(self) -> bool:
        """Whether there is more than one group."""
        return len(set(self.first)) > 1

    @property
    def leads(self) -> bool:
        """Whether this process leads its group."""
        return self.first[self.process] == self.process

    @property
    def leaders(self) -> list[int]:
        """The leaders of all groups."""
        return sorted(set(self.first))

    @property
    def host(self) -> str:
        """The name of this process's group."""
        return self.hosts[self.process]

    def at(self, leader: int) -> list[int]:
        """Return the processes of the group that ``leader`` leads."""
        return [process for process, first in enumerate(self.first) if first == leader]


def find_shared_file_systems(client: CoordinatorClient, directory: str) -> SharedFileSystems:
    """Write a file into ``directory`` on every process; look for those of the others.

    Raises PeerLostError, and OSError where the directory cannot be written.
    """
    mine = f".place-{client.process}-{secrets.token_hex(8)}"
    path = os.path.join(directory, mine)
    write_bytes(path, b"")
    try:
        messages = client.exchange("place", json.dumps({"file": mine, "directory": directory}).encode())
        others = [json.loads(text) for text in messages]
        first = _first_visible(directory, [other["file"] for other in others], client.process)
        firsts = [int(text) for text in client.exchange("place-seen", str(first).encode())]
    finally:
        os.unlink(path)
    names = {leader: client.peers[leader].host for leader in set(firsts)}
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    unique = {leader: f"{name}#{leader}" if name in twice else name for leader, name in names.items()}
    ids: tuple[str, ...] = ()
    if len(names) > 1:
        places = client.exchange("place-id", _directory_id(os.path.join(directory, "checkpoints")).encode())
        ids = tuple(text.decode() for text in places)
    return SharedFileSystems(
        client.process,
        tuple(firsts),
        tuple(unique[first] for first in firsts),
        tuple(other["directory"] for other in others),
        ids,
    )


def _directory_id(directory: str) -> str:
    """Return the random id of a directory, which is stored in it.

    Another disk that is mounted there has another id. Empty if there is no such directory.
    """
    if not os.path.isdir(directory):
        return ""
    path = os.path.join(directory, ".id")
    with locked(os.path.join(os.path.dirname(directory), ".lock")):
        try:
            return read_bytes(path, 64).decode("ascii", "replace")
        except FileNotFoundError:
            identity = secrets.token_hex(16)
            write_bytes(path, identity.encode())
            return identity


def _first_visible(directory: str, files: list[str], process: int) -> int:
    """Return the lowest process whose file is visible here.

    Files of processes below ``process`` are awaited for a short time.
    """
    deadline = time.monotonic() + VISIBILITY_TIMEOUT
    while True:
        there = set(os.listdir(directory))
        first = next(number for number, file in enumerate(files) if file in there or number == process)
        if first == 0 or time.monotonic() > deadline:
            return first
        time.sleep(POLL_INTERVAL)
