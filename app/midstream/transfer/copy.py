"""Copy a tree of objects (a checkpoint, a token cache) from one host to another, verified at the far end.

There is no journal: what lies on the target's disk says how far a copy came. An object has its own name there
only if its bytes once had the manifest's hash, and it is hashed again before it is skipped; the manifest is
written last. Whatever was killed, whenever, the same call goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Event
from typing import Any

from midstream.errors import RemoteError
from midstream.hosts.base import Host
from midstream.hosts.programs import run_program
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.model import CopyReport, Progress
from midstream.transfer.progress import Meter
from midstream.transfer.route import Place, Relay, Route
from midstream.transfer.streams import STREAMS, disk_full, send_all
from midstream_engine import records

SLACK = 1 << 20  # bytes of the target's disk beside the objects: manifest and directories
CALL = 600.0  # seconds for a call that reads one manifest, or hashes one object


def copy_objects(
    source: Host,
    source_dir: str,
    target: Host,
    target_dir: str,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    streams: int = STREAMS,
) -> CopyReport:
    """Make ``target_dir`` hold what the manifest in ``source_dir`` names. The manifest's file arrives byte for byte,
    last, and only when every object is verified at the target.

    TransferError names the object that is missing or corrupt at the source, or the bytes that do not fit;
    Cancelled; LostContact. After each of them the target is without a new manifest, and the same call
    sends only what is not there yet."""
    started = time.monotonic()
    route = Relay(Place(source, source_dir), Place(target, target_dir))
    text, objects = _described(route.source, manifest_name)
    meter = Meter(sum(entry["size"] for entry in objects), len(objects), progress)
    meter.publish()

    present = _present(route.target, objects, meter, cancel)
    absent = [entry for entry in objects if entry["path"] not in present]
    _prepare(route, manifest_name, text, absent)

    by_path = {entry["path"]: entry for entry in objects}

    def explain(path: str, what: str) -> TransferError:
        wrong = source.call("tree.check", directory=source_dir, entry=by_path[path], timeout=CALL)
        if wrong is not None:
            message = f"object {shown(path)} of {route.source} is corrupt: {wrong}"
            return TransferError(message, "copy another one", path)
        message = f"object {shown(path)} changed on its way to {route.target}: {what}"
        return TransferError(message, "run it again", path)

    send_all(route, absent, meter, explain=explain, streams=streams, cancel=cancel)
    target.call(
        "objects.commit", directory=target_dir, manifest=manifest_name, text=text, objects=objects, timeout=CALL
    )
    return CopyReport(
        objects=len(objects),
        objects_sent=len(absent),
        bytes=meter.bytes_total,
        bytes_sent=sum(entry["size"] for entry in absent),
        seconds=time.monotonic() - started,
        skipped=tuple(sorted(present)),
    )


def _described(source: Place, manifest_name: str) -> tuple[str, list[dict[str, Any]]]:
    """The manifest's text and objects. TransferError where an object is missing or short."""
    try:
        described = source.host.call("tree.describe", directory=source.directory, manifest=manifest_name, timeout=CALL)
    except RemoteError as error:
        if error.kind != "RecordError":
            raise
        raise TransferError(error.message) from error
    if described["problems"]:
        path, what = described["problems"][0]
        others = len(described["problems"]) - 1
        more = f", and {others} more like it" if others else ""
        raise TransferError(f"object {shown(path)} of {source}: {what}{more}", "copy another one", path)
    return described["manifest"], described["objects"]


def _present(target: Place, objects: list[dict[str, Any]], meter: Meter, cancel: Event | None) -> set[str]:
    """Paths of the objects that the target holds with the right hash. It reads them there."""
    present = set()
    arguments = {"directory": target.directory, "objects": objects}
    for report in run_program(target.host, "tree.survey", arguments, cancel):
        if report["event"] == "checked" and report["right"]:
            present.add(report["path"])
            meter.present(report["path"], report["bytes"])
    return present


def _prepare(route: Route, manifest_name: str, text: str, absent: list[dict[str, Any]]) -> None:
    """Make the target directory. TransferError where the bytes do not fit, or where another tree has its name."""
    target = route.target
    needed = sum(entry["size"] for entry in absent)
    ready = target.host.call(
        "objects.prepare", directory=target.directory, manifest=manifest_name, needed=needed + SLACK, timeout=CALL
    )
    there = None if ready["manifest"] is None else _named(ready["manifest"])
    if there is not None and there != _named(text):
        raise TransferError(
            f"{target} holds another tree than {route.source}", "remove it, or copy to another directory"
        )
    if not ready["fits"]:
        raise disk_full(route, needed, ready["free"])


def _named(manifest: str) -> list[tuple[str, int, str]] | None:
    """What a manifest names. None where it cannot be read: no tree at all, and it may be replaced."""
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None
