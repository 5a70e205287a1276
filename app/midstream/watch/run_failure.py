"""Failure of a run: one-line reason, last lines and their place in the log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.watch.log_errors import is_error, last_words
from midstream.watch.snapshot import RunView
from midstream_core import records

_HINT = re.compile(r"\s*\(hint: [^()]*\)$")


@dataclass(frozen=True)
class RunFailure:
    """The first failure of a run's attempt.

    Attributes:
        run: The copy on the host of the process that failed.
        process: Number of that process.
        reason: Why it failed, in one line without a hint.
        message: The same in full.
        ending: Exit code or signal, and the step; empty if neither was recorded.
        log: The last words in its log: a traceback, or the last lines.
    """

    run: RunView
    process: int
    reason: str
    message: str
    ending: str
    log: tuple[str, ...]


def has_failed(run: RunView) -> bool:
    """Return whether this copy of a run failed, or lost its process."""
    return run.state in (records.FAILED, "lost")


def failure_of(members: Sequence[RunView]) -> RunFailure | None:
    """Return an attempt's failure from its copies on all its hosts; None without one.

    ``members`` begins with process 0. Of several failures, the first to end is returned: the others lost their peer.
    """
    failed = [run for run in members if has_failed(run)]
    if not failed:
        return None
    run = min(failed, key=lambda run: run.exit.time if run.exit else float("inf"))
    process = run.exit.process if run.exit else run.status.process if run.status else 0
    log = run.log if run.log_range.process == process else ()
    message = _message(run, process, log[run.error_line].strip() if log else "")
    reason = _HINT.sub("", message)
    if len(members) > 1 or process:
        reason = f"process {process} on {run.host}: {reason}"
    words = tuple(last_words(log, run.error_line)) if log else ()
    return RunFailure(run, process, reason, message, _ending(run), words)


def _message(run: RunView, process: int, last_line: str) -> str:
    """Return why a process failed: from its status, exit record, job, else its log."""
    status = run.status
    if status is not None and status.process == process and status.state == records.FAILED and status.message:
        return status.message
    if run.exit is not None and run.exit.message:
        # An interpreter prints the exception last, but other threads and programs may print after it.
        if run.exit.code is not None and not run.exit.stalled and is_error(last_line):
            return f"exit code {run.exit.code}: {last_line}"
        return run.exit.message
    if status is not None and status.state == records.FAILED:
        return last_line or "failed without a message"
    if run.job_remark:
        return f"{run.job_remark}: {last_line}" if last_line else run.job_remark
    return f"exited without a message: {last_line}" if last_line else "exited without a message"


def _ending(run: RunView) -> str:
    if run.exit is None:
        return ""
    how = f"signal {run.exit.signal}" if run.exit.signal else f"exit code {run.exit.code}"
    at = f", {run.exit.state} at step {run.exit.step:,}" if run.exit.state else ", before its first status"
    return f"{how}{at}"
