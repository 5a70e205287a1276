"""Copy of a run's history.

The history is the config, the lineage, and the metrics, status, restore evidence, log and events of every
attempt.

A target that had the run before may have more of an attempt than the source: its metrics are never replaced by a part
of themselves. Commands are not part of the history, and the migration writes the fence.

The files that the source lists are checked against an allowlist (`midstream_host.allowlist`) before any is
requested. The run's config is the text that the caller has checked: no other text is sent.
"""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from midstream.errors import RemoteError
from midstream.hosts.host import Host
from midstream.printable import printable
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter
from midstream.transfer.report import HistoryReport
from midstream.transfer.send_files import send_files
from midstream.transfer.tree_contents import malformed
from midstream_core import records
from midstream_host import allowlist
from midstream_host.copy import history
from midstream_host.copy_items import HistoryObject

CONFIG = "run.yaml"
METRICS = "metrics.jsonl"
EVENTS = "events.out.tfevents."  # prefix of TensorBoard's files, one per attempt, appended to
HISTORY_TIMEOUT = 300.0  # seconds for a call that reads or hashes a history
R = TypeVar("R")


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
    """Copy the history of a run.

    Every file is verified by its hash at the target. Of a log only the end is copied.

    After an error the same call continues the copy.

    Args:
        source: Host that has the run.
        target: Host that receives the history.
        run_id: The run.
        source_root: The run's root on the source.
        target_root: Its root on the target.
        config: The text of ``run.yaml`` that was checked; None to leave the file out.
        cancel: Ends the copy when it is set.
        settings: By default those of the fleet file.

    Raises:
        TransferError: The source lists other files, or a file changed during the copy.
        Cancelled: ``cancel`` was set.
        ConnectionLostError: A connection broke.
    """
    run_source = Endpoint(source, records.RunPaths(source_root, run_id).dir)
    run_target = Endpoint(target, records.RunPaths(target_root, run_id).dir)
    try:
        described = source.call(history.describe, timeout=HISTORY_TIMEOUT)(root=source_root, run_id=run_id)
    except RemoteError as error:
        if error.kind != "RecordError":
            raise
        raise TransferError(error.message) from error
    files = _requested(run_source, described, config)
    compared = _compare(Endpoint(source, source_root), Endpoint(target, target_root), run_id, files)
    needed_files, kept, aside = _decide(compared)

    needed = sum(entry["size"] for entry in needed_files)
    set_aside = [
        (path, target.call(history.set_aside, timeout=HISTORY_TIMEOUT)(root=target_root, run_id=run_id, path=path))
        for path in aside
    ]

    def explain(path: str, what: str) -> TransferError:
        message = f"{printable(path)} of {run_source} changed while it was copied: {what}"
        return TransferError(message, "run it again", path)

    meter = Meter(needed, len(needed_files))
    send_files(run_source, run_target, needed_files, meter, explain=explain, cancel=cancel, settings=settings)
    if described.lineage is not None:
        target.call(history.merge_lineage, timeout=HISTORY_TIMEOUT)(target_root, run_id, described.lineage.to_json())
    return HistoryReport(
        files=len(files),
        bytes=needed,
        copied=tuple(entry["path"] for entry in needed_files),
        kept=tuple(kept),
        set_aside=tuple(set_aside),
    )


def _requested(source: Endpoint, described: history.HistoryDescription, config: str | None) -> list[HistoryObject]:
    """Return the listed files that are to be copied.

    Raises:
        TransferError: The source lists a file that is not part of a history.
    """
    try:
        files = allowlist.check_all(allowlist.HISTORY, [vars(file) for file in described.files])
    except allowlist.NotAllowedError as error:
        raise TransferError(
            f"{source.host.name} lists a file that is not part of run {posixpath.basename(source.directory)}: {error}",
            f"check which program answers on {source.host.name}; nothing was copied",
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
class _ComparedFile:
    """File of the source's history, compared with the target's file of the same name.

    Attributes:
        entry: The source's file.
        size: Bytes of the target's file; None if there is none.
        shared: Whether both have the same bytes up to the end of the shorter one.
    """

    entry: HistoryObject
    size: int | None
    shared: bool

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
    def target_is_longer(self) -> bool:
        """Whether the target's file continues after the end of the source's."""
        return self.shared and self.size is not None and self.size > self.entry["size"]

    @property
    def is_events(self) -> bool:
        return posixpath.basename(self.path).startswith(EVENTS)

    @property
    def same(self) -> bool:
        return self.shared and self.size == self.entry["size"]


def _decide(files: list[_ComparedFile]) -> tuple[list[HistoryObject], list[str], list[str]]:
    """Decide what happens to each file.

    Metrics are append-only: if two files share their beginning, the longer one is the later one. If they do not, they
    belong to two attempts of the same number, and the run's is the source's.

    Returns:
        Entries to copy, paths of the target's files to keep, paths of the target's files to set aside first.
    """
    ahead = {file.attempt for file in files if file.is_metrics and file.target_is_longer}
    objects: list[HistoryObject] = []
    kept: list[str] = []
    aside: list[str] = []
    for file in files:
        if file.same:
            continue
        has_complete_log = (
            "offset" in file.entry and file.entry["offset"] > 0 and (file.size or 0) >= file.entry["size"]
        )
        if file.attempt in ahead or has_complete_log or (file.is_events and file.target_is_longer):
            kept.append(file.path)
            continue
        if file.is_metrics and file.size is not None and not file.shared:
            aside.append(file.path)
        objects.append(file.entry)
    return objects, kept, aside


def _compare(source: Endpoint, target: Endpoint, run_id: str, files: list[HistoryObject]) -> list[_ComparedFile]:
    """Compare with the target's files of the same names, by hashes.

    The endpoints' directories are the roots.
    """

    def checked(endpoint: Endpoint, function: str, count: int, answer: list[R]) -> list[R]:
        if len(answer) != count:
            raise malformed(endpoint, function)
        return answer

    def digests(endpoint: Endpoint) -> list[str]:
        hashes = endpoint.host.call(history.digests, timeout=HISTORY_TIMEOUT)(endpoint.directory, run_id, ranges)
        return checked(endpoint, "copy.history.digests", len(ranges), hashes)

    paths = [entry["path"] for entry in files]
    sizes = target.host.call(history.sizes, timeout=HISTORY_TIMEOUT)(target.directory, run_id, paths)
    sizes = checked(target, "copy.history.sizes", len(files), sizes)
    both = [(entry, size) for entry, size in zip(files, sizes, strict=True) if size is not None]
    ranges = [[entry["path"], min(entry["size"], size)] for entry, size in both]
    shared = {
        path: target_hash == other
        for (path, _), target_hash, other in zip(ranges, digests(target), digests(source), strict=True)
    }
    return [
        _ComparedFile(entry, size, shared.get(entry["path"], False)) for entry, size in zip(files, sizes, strict=True)
    ]
