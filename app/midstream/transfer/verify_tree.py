"""Verify a tree of objects on its own host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event

from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import run_program
from midstream.hosts.rpc.report_types import VERIFY, CheckedObject, Problem, TreeSize, Verifying
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter
from midstream.transfer.report import Progress, VerifyReport
from midstream_core import records


def verify_objects(
    host: Host,
    directory: str,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
) -> VerifyReport:
    """Hash every object on its host and compare it with the manifest.

    A checkpoint's root digest is recomputed from the manifest's arrays, the measured hashes and ``train.json``'s state.

    Args:
        host: The host that has the tree.
        directory: The tree's directory on it.
        manifest_name: Name of the manifest in the directory.
        progress: Called with the progress, from this thread.
        cancel: Ends the verification when it is set.

    Raises:
        TransferError: There is no manifest.
        Cancelled: ``cancel`` was set.
        ConnectionLostError: The connection broke.
    """
    with run_program(host, VERIFY, cancel)(directory, manifest_name) as reports:
        return _collect(host.name, directory, reports, progress)


def _collect(
    host: str, directory: str, reports: Iterable[Verifying], progress: Callable[[Progress], None] | None
) -> VerifyReport:
    problems: list[tuple[str, str]] = []
    read = objects = 0
    meter: Meter | None = None
    for report in reports:
        if isinstance(report, Problem):
            raise TransferError(f"{host}: {report.message}")
        if isinstance(report, TreeSize):
            meter = Meter(report.bytes, report.objects, progress)
        elif isinstance(report, CheckedObject):
            objects += 1
            read += report.bytes
            if report.wrong is not None:
                problems.append((report.path, report.wrong))
            if meter is not None:
                meter.arrived(report.bytes)
                meter.verified(report.path)
        else:
            problems += report.problems
            checked = None if report.recorded is None else report.recomputed == report.recorded
            return VerifyReport(
                ok=not problems and checked is not False,
                problems=tuple(sorted(problems)),
                objects=objects,
                bytes=read,
                extra=tuple(report.extra),
                root_digest=report.recomputed,
                root_digest_ok=checked,
            )
    raise TransferError(f"{host}: verifying {directory} ended without a result")
