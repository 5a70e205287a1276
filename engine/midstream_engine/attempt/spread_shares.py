"""Completion or removal of spread checkpoints' shares when an attempt starts.

A host that was interrupted once its share was stored, or on which the disk was full, has no manifest; the share has a
`records.Share`. If a host of this attempt has the manifest, the share is completed. A share is removed only if it is
certainly not committed: the directory that process 0 would have committed to belongs to a host of this attempt and has
no manifest, and no process of the earlier attempt runs. Other shares stay, because the manifest may be on a host that
is not in this attempt.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import time

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError
from midstream_core.json_types import JsonValue
from midstream_engine.checkpoint.saving.consensus import complete_share
from midstream_engine.checkpoint.stores import in_bucket, open_checkpoints, open_store
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)
QUIET = 600.0  # seconds without a heartbeat until a process of another machine or boot counts as ended


def settle_shares(attempt: AttemptRecord) -> None:
    """Complete this host's shares that are committed, and remove those that are not.

    All processes call it. Errors of a share are logged: it stays as it is.

    Raises:
        OSError: The directory of the checkpoints cannot be read.
        PeerLostError: Another process has failed.
    """
    client, file_systems, paths = attempt.processes.client, attempt.file_systems, attempt.paths
    if client is None or file_systems is None or not file_systems.spread or in_bucket(paths.checkpoints):
        return
    mine = _look(paths) if file_systems.leads else _Found()
    shares = [_Found(**json.loads(text)) for text in client.exchange("shares", json.dumps(vars(mine)).encode())]
    waiting = sorted({name for share in shares for name in share.waiting})
    if not waiting:
        return
    running = _running(paths, {_attempt(name) for name in waiting}) if file_systems.leads else []
    exchanged = client.exchange("share-attempts", json.dumps(running).encode())
    may_run = {number for text in exchanged for number in json.loads(text)} | {attempt.number}
    for name in waiting:
        source = next((process for process, host_share in enumerate(shares) if name in host_share.complete), None)
        if source is not None:
            for process, host_share in enumerate(shares):
                if client.process == source and name in host_share.waiting:
                    client.send(f"share-{name}", _manifest(paths.checkpoint(name)), process)
            if name in mine.waiting:
                complete_from(paths.checkpoint(name), client.receive(f"share-{name}", source))
        elif name in mine.waiting and not attempt.standby and _attempt(name) not in may_run:
            leaders = {file_systems.ids[leader] for leader in file_systems.leaders}
            if not any(name in host_share.unknown for host_share in shares):
                _remove(paths, name, leaders)


@dataclasses.dataclass(frozen=True)
class _Found:
    """Names of the checkpoints on one file system."""

    complete: list[str] = dataclasses.field(default_factory=lambda: list[str]())  # with a manifest
    waiting: list[str] = dataclasses.field(default_factory=lambda: list[str]())  # shares without a manifest
    unknown: list[str] = dataclasses.field(default_factory=lambda: list[str]())  # in the trash, or not readable


def _look(paths: records.RunPaths) -> _Found:
    share = _Found()
    for name in open_checkpoints(paths.checkpoints).names():
        bare = name.removeprefix(TRASH)
        if records.parse_checkpoint_name(bare) is None:
            continue
        store = open_store(paths.checkpoint(name))
        try:
            if name != bare:
                share.unknown.append(bare)
            elif store.exists(records.MANIFEST):
                share.complete.append(name)
            elif store.exists(records.SHARE):
                share.waiting.append(name)
        except OSError as error:
            log.warning("checkpoint %s cannot be read: %s", name, error)
            share.unknown.append(name)
    return share


def _attempt(name: str) -> int:
    parsed = records.parse_checkpoint_name(name)
    return parsed[1] if parsed else 0


def _running(paths: records.RunPaths, numbers: set[int]) -> list[int]:
    """Return those attempts of which a process may still run here and commit."""
    return [number for number in sorted(numbers) if _may_run(paths.attempt(number).dir)]


def _may_run(directory: str) -> bool:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    for name in names:
        if re.fullmatch(r"status-\d+\.json", name):
            try:
                status = records.Status.read(os.path.join(directory, name))
            except (OSError, records.RecordError):
                return True
            quiet = status.state in records.ENDED or time.time() - status.heartbeat > QUIET
            # A process that has recorded its end may still be saving.
            if records.is_running(status.identity) or (
                not quiet and not records.has_ended(status.identity, status.heartbeat)
            ):
                return True
    return False


def _manifest(directory: str) -> bytes:
    """Return a manifest's bytes; empty, after an error in the log, if unreadable."""
    try:
        return open_store(directory).get(records.MANIFEST)
    except OSError as error:
        log.error("%s cannot be read: %s", os.path.join(directory, records.MANIFEST), error)
        return b""


def complete_from(directory: str, manifest: bytes) -> None:
    """Write the manifest of this host's share, if its objects are complete.

    Args:
        directory: Directory of the share, without a manifest.
        manifest: Manifest of another host, which lists the objects.
    """
    try:
        share = records.Share.read(os.path.join(directory, records.SHARE))
        value: dict[str, JsonValue] = json.loads(manifest)
        completed = records.Manifest.from_json(value, f"manifest for {directory}")
        if share.host not in {entry.host for entry in completed.spread_hosts}:
            raise CheckpointError(f"it is not spread over {share.host}")
        store = open_store(directory)
        for entry in completed.object_entries:
            if entry.host in ("", share.host) and store.size(entry.path) != entry.size:
                raise CheckpointError(f"object {entry.path} has another size")
    except (OSError, ValueError, CheckpointError, records.RecordError) as error:
        log.error("%s: this host's share of the checkpoint is not completed: %s", directory, error)
        return
    complete_share(directory, dataclasses.replace(completed, host=share.host))


def _remove(paths: records.RunPaths, name: str, leaders: set[str]) -> None:
    """Remove a share that process 0 has not committed.

    The share stays unless one of ``leaders`` is the directory that process 0 would have committed to.
    """
    directory, checkpoints = paths.checkpoint(name), open_checkpoints(paths.checkpoints)
    try:
        leader = records.Share.read(os.path.join(directory, records.SHARE)).leader
        if not leader or leader not in leaders:
            return
        with records.locked(paths.lock):
            if open_store(directory).exists(records.MANIFEST):
                return
            checkpoints.set_aside(name)
        checkpoints.empty(name)
    except (OSError, records.RecordError) as error:
        log.error("%s: this host's share of an interrupted save is not removed: %s", directory, error)
        return
    log.info("removed this host's share of %s: its save was interrupted before the commit", name)
