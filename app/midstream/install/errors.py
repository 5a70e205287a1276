"""The error of a launch."""

from __future__ import annotations

from midstream.errors import Exit, MidstreamError


class LaunchError(MidstreamError):
    """Error: an engine cannot be installed or started, or has failed.

    ``log`` has the last lines that it wrote.
    """

    def __init__(self, message: str, hint: str = "", log: tuple[str, ...] = (), code: Exit | None = None) -> None:
        super().__init__(message, hint, code)
        self.log = log


class NotStartedError(LaunchError):
    """Error: a job of SLURM was cancelled before its engine started.

    There was nothing to save.
    """


class NotYetError(LaunchError):
    """Error: processes still run, and did not reach a state within their time."""


class NotStoppingError(LaunchError):
    """Error: processes were requested to stop, show no sign of it, and still run."""
