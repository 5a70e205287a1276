"""Which processes share a file system: looked at, not assumed."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass

from midstream_engine.processes.message_board import MessageBoard
from midstream_engine.records import write_bytes

LOOKED = 3.0  # seconds within which a file that another host wrote has to be seen: network file systems cache names
POLL = 0.1


@dataclass(frozen=True)
class SharedFileSystems:
    """The directory of a run as its processes see it. A *place* is a directory that some of them share; its first
    process (the lowest number) leads it."""

    process: int
    first: tuple[int, ...]  # of each process, the first one at its place
    hosts: tuple[str, ...]  # of each process, the name of its place: that of its first process's host, made unique
    directories: tuple[str, ...]  # of each process, the run's directory

    @property
    def spread(self) -> bool:
        """Whether there is more than one place."""
        return len(set(self.first)) > 1

    @property
    def leads(self) -> bool:
        return self.first[self.process] == self.process

    @property
    def leaders(self) -> list[int]:
        return sorted(set(self.first))

    @property
    def host(self) -> str:
        """The name of this process's place."""
        return self.hosts[self.process]

    def at(self, leader: int) -> list[int]:
        """The processes at the place that ``leader`` leads."""
        return [process for process, first in enumerate(self.first) if first == leader]


def find_shared_file_systems(board: MessageBoard, directory: str) -> SharedFileSystems:
    """Every process puts a file into its ``directory`` and looks for the files of the others there."""
    mine = f".place-{board.process}-{secrets.token_hex(8)}"
    path = os.path.join(directory, mine)
    write_bytes(path, b"")
    try:
        said = board.exchange("place", json.dumps({"file": mine, "directory": directory}).encode())
        others = [json.loads(text) for text in said]
        first = _first_seen(directory, [other["file"] for other in others], board.process)
        firsts = [int(text) for text in board.exchange("place-seen", str(first).encode())]
    finally:
        os.unlink(path)
    names = {leader: board.peers[leader].host for leader in set(firsts)}
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    unique = {leader: f"{name}#{leader}" if name in twice else name for leader, name in names.items()}
    return SharedFileSystems(
        board.process,
        tuple(firsts),
        tuple(unique[first] for first in firsts),
        tuple(other["directory"] for other in others),
    )


def _first_seen(directory: str, files: list[str], process: int) -> int:
    """The lowest process whose file is seen here. One's own always is; earlier ones are waited for a little."""
    deadline = time.monotonic() + LOOKED
    while True:
        there = set(os.listdir(directory))
        found = next(number for number, file in enumerate(files) if file in there or number == process)
        if found == 0 or time.monotonic() > deadline:
            return found
        time.sleep(POLL)
