"""Requests to the engine, by signal or command, and the consensus of processes.

Each process has a vector of int32 with its view at a step boundary. All processes act on the element-wise maximum over
these vectors at the same step. Whatever differs between processes (signals, clocks, the progress of a save) is part of
the vector; everything else each process decides for itself.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass

import numpy as np

from midstream_core import records
from midstream_core.records.fence import LAST
from midstream_engine.array_types import Leaf
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.signals import Signals

log = logging.getLogger(__name__)

# Indices of the vector.
SAVES, STOPS, COMMAND, EPOCH, DUE, BUSY, FAILED, UNREADABLE, NO_DATA, SUPERSEDED = range(10)


class CommandFile:
    """``command.json``, polled once per step by one stat, and read after a change."""

    def __init__(self, path: str) -> None:
        """Read the command that there is.

        Raises OSError: an attempt starts with its command or not at all.
        """
        self._path = path
        self._version: tuple[int, int] | None = None
        self._failed = ""  # why the last call of `poll` could not read the file
        self.command: records.Command | None = None
        self._look()

    def poll(self) -> records.Command | None:
        """Return the newest command that could be read.

        Training does not end with an error: on a network file system a file may be replaced while it is read, and the
        next call reads the new one.
        """
        before, self._failed = self._failed, ""
        try:
            self._look()
        except OSError as error:
            self._failed = str(error)
            if self._failed != before:
                log.error("command.json cannot be read: %s", error)
        return self.command

    def _look(self) -> None:
        try:
            status = os.stat(self._path)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._version:
                return
            try:
                command = records.Command.read(self._path)
            except records.RecordError as error:
                log.error("command.json cannot be read: %s", error)
                command = None
        except FileNotFoundError:
            return
        self._version = version
        if command is not None:
            self.take(command)

    def take(self, command: records.Command) -> None:
        """Accept a command, also another process's, unless it is older than the present."""
        if self.command is None or command.sequence > self.command.sequence:
            self.command = command


@dataclass(frozen=True)
class Known:
    """View of one process at a step boundary, or the consensus: each field's maximum."""

    epoch: int = 0  # of the fence, as the process reads it
    due: bool = False  # the checkpointer's interval has passed, by the clock of process 0
    busy: bool = False  # a save is still running
    failed: int = 0  # outcome of the last save: 0 saved, else ``saving.NOT_SAVED`` or ``saving.FENCED``
    unreadable: bool = False  # the fence cannot be read: nothing is saved until it can
    no_data: bool = False  # the next batch cannot be read: the attempt ends after this boundary
    superseded: bool = False  # a newer start of this epoch has the run


@dataclass(frozen=True)
class Wanted:
    """Actions of this step boundary."""

    save: bool = False
    stop: bool = False
    signalled: bool = False  # a signal requests the stop
    command: records.Command | None = None  # to be carried out; returned by one boundary only
    facts: Known = Known()  # the consensus of all processes


class Requests:
    """Collector of requests, with the actions of each step boundary.

    Each request is returned once.
    """

    def __init__(
        self, signals: Signals, commands: CommandFile, processes: Processes = ALONE, answered: int = 0
    ) -> None:
        """Prepare to collect.

        Args:
            signals: Signals to this process.
            commands: Commands to the attempt, as this host has them.
            processes: Of the attempt.
            answered: Sequence of the newest command that an earlier start of this attempt has answered; the same on
                all processes.
        """
        self._signals, self._commands = signals, commands
        self._processes = processes
        command = commands.command
        # The command that the attempt was started with, such as a restore, is carried out by starting.
        started = command.sequence if command is not None and command.action in records.STARTS else 0
        started = max(started, answered)
        self._done = np.array([0, 0, started], np.int32)
        self._answered = [0, 0]  # signals of this process that are in ``_done``
        self._sent = started  # newest command that this process has sent to the others
        self._ahead: tuple[Leaf, list[int]] | None = None
        self._consensus: Consensus | None = None

    @property
    def stop_signal(self) -> str:
        """Name of the signal that requested the stop, if this process received it."""
        return self._signals.first_stop or "a signal to another process"

    def ahead(self, facts: Known) -> None:
        """With several processes, start the next boundary's consensus an update ahead."""
        if self._processes.count > 1:
            self._ahead = self._submit(facts)

    def look(self, facts: Known | None = None) -> Wanted:
        """Return the actions of this step boundary; call once at each.

        ``facts`` is this process's view; it has no effect after `ahead`, which submitted one.
        """
        facts = facts or Known()
        begun, self._ahead = self._ahead or self._submit(facts), None
        vector, signals = begun
        agreed = vector if self._consensus is None else self._consensus.result(vector)
        fresh = agreed[: len(self._done)] > self._done
        self._done = np.maximum(self._done, agreed[: len(self._done)])
        self._answered = signals
        self._signals.answer_at_boundaries()  # this was one, and another follows
        new = self._command(int(agreed[COMMAND])) if fresh[COMMAND] else None
        action = new.action if new else ""
        return Wanted(
            save=bool(fresh[SAVES]) or action == records.SAVE,
            stop=bool(fresh[STOPS]) or action == records.STOP,
            signalled=bool(fresh[STOPS]),
            command=new,
            facts=Known(
                int(agreed[EPOCH]),
                bool(agreed[DUE]),
                bool(agreed[BUSY]),
                int(agreed[FAILED]),
                bool(agreed[UNREADABLE]),
                bool(agreed[NO_DATA]),
            ),
        )

    def answer_at_once(self) -> None:
        """No boundary follows for some time: a signal to stop ends the process."""
        self._signals.answer_at_once()

    def _submit(self, facts: Known) -> tuple[Leaf, list[int]]:
        command = self._commands.poll()
        sequence = command.sequence if command else 0
        signals = [self._signals.saves, self._signals.stops]
        # One more than the consensus where this process received another signal: two signals never count as one.
        counts = [done + (now > seen) for done, now, seen in zip(self._done, signals, self._answered, strict=False)]
        mine = np.array(
            [
                *counts,
                sequence,
                min(facts.epoch, LAST + 1),  # a false fence may have any
                facts.due,
                facts.busy,
                facts.failed,
                facts.unreadable,
                facts.no_data,
                facts.superseded,
            ],
            np.int32,
        )
        if self._processes.client is None:
            return mine, signals
        if command is not None and sequence > self._sent:
            self._sent = sequence
            self._processes.client.send(f"command-{sequence}", json.dumps(command.to_json()).encode())
        if self._consensus is None:
            self._consensus = Consensus(len(mine), self._processes)
        return self._consensus.begin(mine), signals

    def _command(self, sequence: int) -> records.Command | None:
        """Return the consensus command, from this host's file or a process that has it."""
        command, client = self._commands.command, self._processes.client
        if client is not None and (command is None or command.sequence != sequence):
            command = records.Command.from_json(
                json.loads(client.receive_any(f"command-{sequence}")), f"command {sequence}"
            )
            self._commands.take(command)
            self._sent = max(self._sent, sequence)
        return command


class Consensus:
    """Compiled element-wise maximum of vectors (int32 [length]) over all processes."""

    def __init__(self, length: int, processes: Processes) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("devices",))
        self._shape = (len(jax.devices()), length)
        self._by_device = NamedSharding(mesh, PartitionSpec("devices"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        vectors = jax.ShapeDtypeStruct(self._shape, np.int32, sharding=self._by_device)
        compiled = jax.jit(lambda rows: rows.max(axis=0), out_shardings=everywhere).lower(vectors).compile()
        self._program = processes.consensus("requests", compiled)

    def begin(self, mine: np.ndarray) -> Leaf:
        """Put this process's vector on its devices and start the program."""
        import jax

        rows = jax.make_array_from_callback(self._shape, self._by_device, lambda _index: mine[None])
        return self._program(rows)

    @staticmethod
    def result(begun: object) -> np.ndarray:
        """Wait for the maximum."""
        return np.asarray(begun)
