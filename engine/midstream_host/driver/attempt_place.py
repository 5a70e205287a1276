"""An attempt as its launcher describes it: run, number, epoch, target, host."""

from __future__ import annotations

import time
from typing import NamedTuple

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile


class AttemptPlace(NamedTuple):
    """An attempt as the launcher describes it."""

    paths: records.RunPaths
    number: int
    epoch: int
    target: str
    host: str
    start: int = 0  # its number within the epoch, once node 0 may record checkpoints; 0 on other nodes

    @property
    def files(self) -> records.AttemptPaths:
        return self.paths.attempt(self.number)


class EndedEarlyError(Exception):
    """The trainer has ended without being requested to."""


def say(message: str) -> None:
    """Print a line to the attempt's log, with its time: a trainer prints there too."""
    print("{} midstream: {}".format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), message), flush=True)


def note(status: StatusFile, message: str) -> None:
    """Print a line, and report it in the status."""
    say(message)
    status.update(message=message)
