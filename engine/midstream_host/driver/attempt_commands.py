"""Commands and signals that an attempt has received."""

from __future__ import annotations

import signal
from typing import List, Optional

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_host.driver.attempt_place import AttemptPlace
from midstream_host.driver.signals import STOPS


class AttemptCommands:
    """Commands of an attempt that it has not obeyed yet.

    Attributes:
        stop: The command to stop; None for a signal.
        requested: A signal to stop has arrived.
        sequence: Of the newest command that was read.
    """

    def __init__(self, place: AttemptPlace, status: StatusFile, sequence: int) -> None:
        self._place, self._status = place, status
        self.stop: Optional[records.Command] = None
        self.requested = False
        self.sequence = sequence
        self._saves: List[int] = []  # sequences of commands to save that are not answered yet

    @property
    def stops(self) -> bool:
        """Whether the trainer is to be stopped."""
        return self.requested or self.stop is not None

    def take(self, arrived: Optional[signal.Signals]) -> None:
        """Note a signal."""
        if arrived in STOPS:
            self.requested = True
        if arrived == signal.SIGUSR1:
            self._saves.append(0)

    def read(self) -> None:
        """Read the command file; a command that a trainer cannot obey is rejected."""
        try:
            command = records.Command.read_or_none(self._place.files.command_file)
        except (OSError, records.RecordError):  # it is being replaced, or the disk hangs
            return
        if command is None or command.sequence <= self.sequence:
            return
        self.sequence = command.sequence
        if command.action == records.STOP:
            self.stop = command
        elif command.action == records.SAVE:
            self.stop = None
            self._saves.append(command.sequence)
            self._status.update(message="a save was requested: the next checkpoint of the trainer is waited for")
        else:
            self._status.update(rejected=command.sequence, message="{}: it trains already".format(command.action))

    def saved(self) -> Optional[int]:
        """Return the sequence that a new checkpoint acknowledges.

        None where no save was requested.
        """
        saves, self._saves = self._saves, []
        return max([*saves, self._status.value.acknowledged]) if saves else None
