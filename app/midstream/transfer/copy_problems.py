"""Errors for problems that the programs of a copy report."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.hosts.rpc.os_errors import plain_words
from midstream.hosts.rpc.report_types import CopyProblem
from midstream.printable import printable
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter


def problem_error(target: Endpoint, source: Endpoint, meter: Meter, report: CopyProblem) -> MidstreamError:
    """Return the error for a problem that the session's program reports."""
    if report.kind == "other":
        return TransferError(f"{target} has another tree than {source}", "remove it, or copy to another directory")
    if report.kind == "full":
        remaining = meter.bytes_total - meter.bytes_present - meter.bytes_sent
        return disk_full(target, remaining if report.needed is None else report.needed, report.free)
    return reported_problem(target, report)


def unrequested(source: Endpoint, path: str, message: str) -> TransferError:
    """Return the error of a source that sends bytes which were not requested."""
    what = f"object {printable(path)}" if path else "an object"
    return TransferError(
        f"{source} sent bytes of {what} that were not requested: {message}",
        f"the copy has ended and these bytes were not stored; check which program runs on {source.host.name}",
        path,
    )


def reported_problem(target: Endpoint, report: CopyProblem) -> TransferError:
    """Return the error for a problem in the host's words.

    The messages of a bucket name the bucket themselves.
    """
    words, hint = plain_words(target.host.name, report.message)
    return TransferError(words if target.in_bucket else f"{target}: {words}", report.hint or hint, report.path)


def disk_full(target: Endpoint, needed: int, free: int) -> TransferError:
    """Return the error of a full disk; ``needed`` and ``free`` in bytes."""
    host = target.host.name
    if needed <= free:  # what `free` counts is not what has run out
        return TransferError(
            f"the disk of {target} accepts no more: {needed:,} bytes are left to copy, and {free:,} are free",
            f"a quota or the number of files: quota -s and df -i on {host} show them; make room, then run it again",
        )
    return TransferError(
        f"no space left at {target}: {needed:,} bytes needed, {free:,} free",
        f"free space on {host} and run it again",
    )
