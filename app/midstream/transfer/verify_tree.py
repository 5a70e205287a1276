"""Verify a tree of objects where it lies."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import run_program
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter
from midstream.transfer.report import Progress, VerifyReport
from midstream_engine import records


def verify_objects(
    host: Host,
    directory: str,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
) -> VerifyReport:
    """Hash every object on its host against the manifest, and recompute a checkpoint's root digest from the manifest's
    arrays, the hashes that were measured, and ``train.json``'s state.

    TransferError where there is no manifest, Cancelled, LostContact."""
    problems: list[tuple[str, str]] = []
    read = objects = 0
    meter: Meter | None = None
    for report in run_program(host, "verify.tree.verify", {"directory": directory, "manifest": manifest_name}, cancel):
        if report["event"] == "problem":
            raise TransferError(f"{host.name}: {report['message']}")
        if report["event"] == "tree":
            meter = Meter(report["bytes"], report["objects"], progress)
        elif report["event"] == "checked":
            objects += 1
            read += report["bytes"]
            if report["wrong"] is not None:
                problems.append((report["path"], report["wrong"]))
            if meter is not None:
                meter.arrived(report["bytes"])
                meter.verified(report["path"])
        elif report["event"] == "verified":
            problems += [(path, what) for path, what in report["problems"]]
            recomputed = report["recomputed"]
            checked = None if report["recorded"] is None else recomputed == report["recorded"]
            return VerifyReport(
                ok=not problems and checked is not False,
                problems=tuple(sorted(problems)),
                objects=objects,
                bytes=read,
                extra=tuple(report["extra"]),
                root_digest=recomputed,
                root_digest_ok=checked,
            )
    raise TransferError(f"{host.name}: verifying {directory} ended without a verdict")
