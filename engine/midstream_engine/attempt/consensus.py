"""Consensus of all processes at the start of an attempt.

Process 0 decides on the command and the checkpoint for all processes.

Hosts may lack files that others have; all processes start from the same state.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_engine.attempt.resume import Origin
from midstream_engine.attempt.spread_shares import settle_shares
from midstream_engine.checkpoint.stores import in_bucket
from midstream_engine.loop.requests import CommandFile
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.runtime.attempt_record import AttemptRecord

T = TypeVar("T")
TURN_TIMEOUT = 7 * 24 * 3600.0  # seconds: tokenizing may take days, and a process that fails is detected anyway


def agree_on_command(processes: Processes, commands: CommandFile, answered: int) -> int:
    """Distribute the command that process 0 was started with.

    Returns the ``answered`` of process 0: sequence of the newest command that an earlier start of this attempt has
    answered.
    """
    if processes.client is None:
        return answered
    command = commands.command
    text = json.dumps([command.to_json() if command is not None else None, answered]).encode()
    value, answered = json.loads(processes.broadcast("first-command", lambda: text))
    if value is not None:
        commands.take(records.Command.from_json(value, "the command of process 0"))
    return answered


def agree_on_origin(attempt: AttemptRecord, find: Callable[[], Origin | None]) -> Origin | None:
    """Return the checkpoint that process 0 found, at its path under this root."""
    processes = attempt.processes
    if processes.client is None:
        return find()
    settle_shares(attempt)

    def encoded() -> bytes:
        origin = find()
        if origin is None:
            return b"null"
        return json.dumps(dataclasses.asdict(origin)).encode()

    value: dict[str, Any] | None = json.loads(processes.broadcast("origin", encoded))
    if value is None:
        return None
    origin = Origin(**value)
    if origin.own and not in_bucket(attempt.paths.checkpoints):
        origin = dataclasses.replace(origin, directory=attempt.paths.checkpoint(origin.name))
    return origin


def in_turn(attempt: AttemptRecord, work: Callable[[], T]) -> T:
    """Call ``work`` on the leader of each file system first, then on the others.

    ``work`` leaves files.
    """
    client, file_systems = attempt.processes.client, attempt.file_systems
    if client is None or file_systems is None:
        return work()
    first = file_systems.first[client.process]
    if first != client.process:
        client.receive("turn", first, timeout=TURN_TIMEOUT)
    result = work()
    if first == client.process:
        for process in file_systems.at(first)[1:]:
            client.send("turn", b"", process)
    return result


def check_alike(processes: Processes, what: str, value: str) -> None:
    """Raise EngineError if a process has another ``value`` than process 0.

    The error names the process.
    """
    if processes.client is None:
        return
    values = [text.decode() for text in processes.client.exchange(f"alike-{what}", value.encode())]
    for peer, theirs in zip(processes.client.peers, values, strict=True):
        if theirs != values[0]:
            raise EngineError(f"{what} differs: {theirs} on {peer}, {values[0]} on {processes.client.peers[0]}")
