"""The engine's own errors: one line for a person, and the exit code it ends with."""

from __future__ import annotations

from midstream_engine import records


class EngineError(Exception):
    """What is wrong and what to do about it, in one line."""

    code = records.EXIT_FAILED


class FencedError(EngineError):
    """The run belongs to someone else: its fence has a higher epoch than this attempt."""

    code = records.EXIT_FENCED
