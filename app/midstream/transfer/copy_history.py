"""Bring a run's history along: config, lineage, every attempt's metrics, status, restore evidence and log, and the
files that TensorBoard reads.

A target that knew the run before may know an attempt further than the source does: its metrics are never replaced
by a part of themselves. Orders are not history, and the fence is the migration's to write.

What the source lists is checked against the receiver's own list (`midstream.remote.copy.allowlist`) before anything is
requested. The run's config is what the caller has read and checked: another text does not arrive.
"""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from threading import Event
from typing import Any

from midstream.errors import RemoteError
from midstream.hosts.host import Host
from midstream.remote.copy import allowlist
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.copy_tree import send_files
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.progress import Meter
from midstream.transfer.report import HistoryReport
from midstream.transfer.tree_contents import malformed
from midstream_engine import records

CONFIG = "run.yaml"
METRICS = "metrics.jsonl"
EVENTS = "events.out.tfevents."  # beginning of a name: one file an attempt, appended to
CALL = 300.0  # seconds


def copy_history(
    source: Host,
    target: Host,
    run_id: str,
    *,
    source_root: str,
    target_root: str,
    config: str | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> HistoryReport:
    """Copy the history of ``run_id``, every file verified by its hash at the target. Of a log the end travels.

    ``config`` is the text of ``run.yaml`` that was checked (`migrate.run_config`); None leaves the file out.
    TransferError, Cancelled, LostContact; the same call goes on."""
    there = records.RunPaths(target_root, run_id)
    run_source = Endpoint(source, records.RunPaths(source_root, run_id).dir)
    run_target = Endpoint(target, there.dir)
    try:
        described = source.call("copy.history.describe", root=source_root, run_id=run_id, timeout=CALL)
    except RemoteError as error:
        if error.kind != "RecordError":
            raise
        raise TransferError(error.message) from error
    files = _requested(run_source, described, config)
    found = _compare(Endpoint(source, source_root), Endpoint(target, target_root), run_id, files)
    wanted, kept, aside = _sort_out(found)

    needed = sum(entry["size"] for entry in wanted)
    set_aside = [
        (path, target.call("copy.history.set_aside", root=target_root, run_id=run_id, path=path, timeout=CALL))
        for path in aside
    ]

    def explain(path: str, what: str) -> TransferError:
        message = f"{shown(path)} of {run_source} changed while it was copied: {what}"
        return TransferError(message, "run it again", path)

    meter = Meter(needed, len(wanted))
    send_files(run_source, run_target, wanted, meter, explain=explain, cancel=cancel, settings=settings)
    if described["lineage"] is not None:
        target.call(
            "copy.history.merge_lineage", root=target_root, run_id=run_id, lineage=described["lineage"], timeout=CALL
        )
    return HistoryReport(
        files=len(files),
        bytes=needed,
        copied=tuple(entry["path"] for entry in wanted),
        kept=tuple(kept),
        set_aside=tuple(set_aside),
    )


def _requested(source: Endpoint, described: Any, config: str | None) -> list[dict[str, Any]]:
    """The files to copy, of those that the source lists. TransferError where it lists one that is no history."""
    try:
        files = allowlist.check_all(allowlist.HISTORY, described["files"])
    except allowlist.NotAllowed as error:
        raise TransferError(
            f"{source.host.name} lists what does not belong to run {posixpath.basename(source.directory)}: {error}",
            f"look at what answers on {source.host.name}; nothing was copied",
            error.path,
        ) from None
    text = (config or "").encode()
    return [
        {**entry, "offset": 0, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        if entry["path"] == CONFIG
        else entry
        for entry in files
        if entry["path"] != CONFIG or config is not None
    ]


@dataclass(frozen=True)
class _Both:
    """A file of the source's history, and what the target has under its name."""

    entry: dict[str, Any]
    size: int | None  # at the target, bytes; None where it is absent
    shared: bool  # the bytes up to the shorter one's end are the same

    @property
    def path(self) -> str:
        return self.entry["path"]

    @property
    def attempt(self) -> str:
        return posixpath.dirname(self.path)

    @property
    def is_metrics(self) -> bool:
        return posixpath.basename(self.path) == METRICS

    @property
    def ends_there(self) -> bool:
        """A file of events that the target has had to a later end."""
        named = posixpath.basename(self.path).startswith(EVENTS)
        return named and self.shared and self.size is not None and self.size > self.entry["size"]

    @property
    def same(self) -> bool:
        return self.shared and self.size == self.entry["size"]

    @property
    def further(self) -> bool:
        """The target's metrics go on where the source's end."""
        return self.is_metrics and self.shared and self.size is not None and self.size > self.entry["size"]


def _sort_out(files: list[_Both]) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Which entries to copy, which paths to leave as the target has them, which of the target's to set aside first.

    Metrics are append-only, so of two that share their beginning the longer one is the later one. Metrics that do
    not share it belong to two attempts that took the same number: the source's are the run's."""
    further = {file.attempt for file in files if file.further}
    wanted, kept, aside = [], [], []
    for file in files:
        if file.same:
            continue
        whole_log = "offset" in file.entry and file.entry["offset"] > 0 and (file.size or 0) >= file.entry["size"]
        if file.attempt in further or whole_log or file.ends_there:
            kept.append(file.path)
            continue
        if file.is_metrics and file.size is not None and not file.shared:
            aside.append(file.path)
        wanted.append(file.entry)
    return wanted, kept, aside


def _compare(source: Endpoint, target: Endpoint, run_id: str, files: list[dict[str, Any]]) -> list[_Both]:
    """Look at the target's files of the same names; hash what both have. ``directory`` of the places is the root."""

    def ask(place: Endpoint, function: str, count: int, **arguments: Any) -> list[Any]:
        answer: list[Any] = place.host.call(function, root=place.directory, run_id=run_id, timeout=CALL, **arguments)
        if len(answer) != count:
            raise malformed(place, function)
        return answer

    sizes = ask(target, "copy.history.sizes", len(files), paths=[entry["path"] for entry in files])
    both = [(entry, size) for entry, size in zip(files, sizes, strict=True) if size is not None]
    ranges = [[entry["path"], min(entry["size"], size)] for entry, size in both]
    theirs = ask(target, "copy.history.digests", len(ranges), ranges=ranges)
    ours = ask(source, "copy.history.digests", len(ranges), ranges=ranges)
    shared = {path: one == other for (path, _), one, other in zip(ranges, theirs, ours, strict=True)}
    return [_Both(entry, size, shared.get(entry["path"], False)) for entry, size in zip(files, sizes, strict=True)]
