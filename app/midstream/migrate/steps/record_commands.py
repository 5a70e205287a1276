"""Lines of shell that show what a migration has written on a host."""

from __future__ import annotations

import shlex

from midstream_core import records

LOG_LINES = 20


def show_command(paths: records.RunPaths, attempt: int) -> str:
    """Print the newest command of an attempt."""
    return f"cat {shlex.quote(paths.attempt(attempt).command_file)}"


def show_fence(paths: records.RunPaths) -> str:
    """Print the run's fence."""
    return f"cat {shlex.quote(paths.fence)}"


def show_ownership(paths: records.RunPaths) -> str:
    """Print the run's signed ownership records."""
    return f"cat {shlex.quote(paths.ownership)}"


def show_log(paths: records.RunPaths, attempt: int) -> str:
    """Print the end of an attempt's log."""
    return f"tail -n {LOG_LINES} {shlex.quote(paths.attempt(attempt).log(0))}"
