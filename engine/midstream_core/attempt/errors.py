"""Errors of an attempt: a one-line message and the exit code."""

from __future__ import annotations

from midstream_core import records


class EngineError(Exception):
    """An error, and what to do about it, in one line."""

    code = records.EXIT_FAILED


class FencedError(EngineError):
    """The fence has a higher epoch: the run belongs to another attempt."""

    code = records.EXIT_FENCED


class AlreadyRunningError(EngineError):
    """A process of an earlier start of this attempt runs on this machine."""


class ContradictionError(EngineError):
    """The restored state is not the one that was saved.

    ``contradiction``: the evidence for that, in one line.
    """

    def __init__(self, contradiction: str, message: str) -> None:
        super().__init__(message)
        self.contradiction = contradiction


class CheckpointError(Exception):
    """A checkpoint cannot be written or read."""
