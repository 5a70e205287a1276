"""A save by several processes, which commit or fail together.

:mod:`save_group` has the roles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping

import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import (
    MANIFEST,
    SHARE,
    TRAIN,
    ArrayEntry,
    Manifest,
    ObjectEntry,
    RunPaths,
    Share,
    SpreadHost,
    canonical_json,
)
from midstream_engine.checkpoint.boxes import Box
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.saving import checkpoint_writer
from midstream_engine.checkpoint.saving.commit import commit, manifest_text
from midstream_engine.checkpoint.saving.save_group import SaveGroup, owner, pieces_for_leader
from midstream_engine.checkpoint.saving.save_rendezvous import SaveRendezvous
from midstream_engine.checkpoint.saving.snapshot import HostArray, release
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.hashed_objects import write_object
from midstream_engine.checkpoint.stores.object_store import ObjectStore
from midstream_engine.checkpoint.train_document import TrainDocument

log = logging.getLogger(__name__)
Pieces = list[tuple[str, Box, np.ndarray]]  # array, part, data


def finish_with_consensus(  # noqa: PLR0913  step, attempt, epoch and start identify a checkpoint
    paths: RunPaths,
    directory: str,
    arrays: list[HostArray],
    document: TrainDocument,
    group: SaveGroup,
    *,
    step: int,
    attempt: int,
    epoch: int,
    start: int = 0,
) -> Manifest:
    """Write this process's share of a save; return the manifest when it is durable.

    Every process returns the manifest.

    Args:
        paths: The run.
        directory: Directory or URL of the checkpoint.
        arrays: This process's snapshot.
        document: ``train.json``.
        group: The processes that save together.
        step: Number of updates done.
        attempt: Number of the attempt.
        epoch: The epoch that commits.
        start: The start of that epoch that commits.

    Raises:
        CheckpointError: The save failed on one process; raised on all.
        FenceRejectedError: The fence does not accept the epoch; raised on all.
    """
    rendezvous, needed = SaveRendezvous(directory, group), checkpoint_writer.stored_bytes(arrays)
    handled = checkpoint_writer.reported(directory, needed)
    if group.leads_locally:
        handled = checkpoint_writer.removed_on_failure(directory, needed, lambda: rendezvous.share_stays)
    try:
        with handled:
            if not group.leads:
                return _follow(directory, arrays, group, rendezvous)
            written, store = _lead(directory, arrays, document, group, rendezvous)
            hosts, host = _hosts(directory, group)
            name = {"step": step, "attempt": attempt, "epoch": epoch, "start": start}
            manifest = commit(paths, directory, written, **name, hosts=hosts, host=host)
            store.close()
            rendezvous.send_committed(manifest)
            return manifest
    except BaseException as error:
        # Without a spread no other process removes anything, and a bucket might repeat the request for minutes.
        rendezvous.abort(error, committed=group.leads and group.spread and _may_have_manifest(directory))
        raise
    finally:
        rendezvous.close()


def _may_have_manifest(directory: str) -> bool:
    """Return whether the checkpoint is committed, or that cannot be determined."""
    try:
        return open_store(directory).exists(MANIFEST)
    except (OSError, CheckpointError):
        return True


def _lead(
    directory: str, arrays: list[HostArray], document: TrainDocument, group: SaveGroup, rendezvous: SaveRendezvous
) -> tuple[checkpoint_writer.Written, ObjectStore]:
    """Write process 0's share and all that no other process writes.

    Returns all objects of the checkpoint.
    """
    store = _prepared(directory, arrays, group, rendezvous)
    objects, _ = _write_share(store, arrays, group)
    others, received = rendezvous.receive_parts()
    extra: dict[str, list[tuple[Box, np.ndarray]]] = {}
    for name, box, data in received:
        extra.setdefault(name, []).append((box, data))
    complete = [dataclasses.replace(a, pieces=[*a.pieces, *extra.get(a.name, [])]) for a in arrays]
    # Chunks that are assembled from several processes are stored with the small objects: on every file system.
    rest = [
        *checkpoint_writer.write_rest(store, complete, document),
        *checkpoint_writer.write_chunks(store, complete, _belongs_to_none),
    ]
    store.sync()
    entries = checkpoint_writer.describe_arrays(complete)
    listed = _listed(directory, entries, {0: objects, **others}, rest, group)
    written = checkpoint_writer.written_of(entries, listed, document)
    if group.spread:
        rendezvous.share({entry.path: store.get(entry.path) for entry in rest})
    return written, store


def _follow(directory: str, arrays: list[HostArray], group: SaveGroup, rendezvous: SaveRendezvous) -> Manifest:
    """Write this process's chunks and send the list of them.

    The first process of a file system stores the small objects.
    """
    if group.leads_locally:
        store = _prepared(directory, arrays, group, rendezvous)
    else:
        rendezvous.await_ready()
        store = open_store(directory)
    objects, pieces = _write_share(store, arrays, group)
    release(arrays)
    rendezvous.send_part(objects, pieces)
    del pieces
    if group.leads_locally:
        for path, data in rendezvous.receive_shared().items():
            write_object(store, path, memoryview(data))
        systems = group.file_systems
        assert systems is not None
        share = Share(systems.host, systems.ids[0] if systems.ids else "")
        store.write(SHARE, [memoryview(canonical_json(share.to_json()))])
        store.sync()
        rendezvous.send_stored()
    manifest = rendezvous.receive_committed()
    if group.leads_locally:
        assert group.file_systems is not None
        manifest = dataclasses.replace(manifest, host=group.file_systems.host)
        complete_share(directory, manifest)
    store.close()
    return manifest


def complete_share(directory: str, manifest: Manifest) -> None:
    """Write the missing manifest of this host's share of a checkpoint.

    An error is logged: process 0 has committed the checkpoint, and the others go on as after every save.
    """
    store = open_store(directory)
    try:
        if not store.exists(MANIFEST):
            store.commit(MANIFEST, manifest_text(manifest))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, SHARE))
    except OSError as error:
        log.error("%s: %s is not written here, the next start writes it: %s", directory, MANIFEST, error)


def _prepared(directory: str, arrays: list[HostArray], group: SaveGroup, rendezvous: SaveRendezvous) -> ObjectStore:
    """Empty this file system's directory and report that to processes sharing it."""
    store = open_store(directory)
    if store.exists(MANIFEST):
        raise CheckpointError(f"{directory} is complete: a checkpoint is never overwritten")
    if not group.leads and store.exists(SHARE):
        # The share of an earlier save of this step, which process 0 may have committed.
        rendezvous.await_leader()
    rendezvous.prepared = True
    needed = checkpoint_writer.stored_bytes(arrays)
    store.prepare(int(needed * len(group.local_processes) / group.count) if group.spread else needed)
    rendezvous.send_ready()
    return store


def _write_share(store: ObjectStore, arrays: list[HostArray], group: SaveGroup) -> tuple[list[ObjectEntry], Pieces]:
    """Write this process's chunks; return their entries, and the pieces for process 0.

    Each file system stores all parts of its processes, so that they can resume without the others.
    """
    among = group.local_processes if group.spread else None

    def mine(array: HostArray, number: int, box: Box) -> bool:
        return owner(array, number, box, among) == group.process

    objects = checkpoint_writer.write_chunks(store, arrays, mine)
    store.sync()
    return objects, [(a.name, box, data) for a in arrays for box, data in pieces_for_leader(a, group.process)]


def _belongs_to_none(array: HostArray, number: int, box: Box) -> bool:
    return owner(array, number, box) is None


def _listed(
    directory: str,
    entries: list[ArrayEntry],
    chunks: Mapping[int, list[ObjectEntry]],
    rest: list[ObjectEntry],
    group: SaveGroup,
) -> list[ObjectEntry]:
    """Return every object once, with its host if not all have it.

    Raises:
        CheckpointError: A chunk of a grid was not written, or twice on one file system.
        CheckpointCorruptError: An object differs between file systems.
    """
    systems = group.file_systems
    listed: dict[str, tuple[ObjectEntry, list[int]]] = {}
    for process, objects in sorted(chunks.items()):
        leader = 0 if systems is None else systems.first[process]
        for entry in objects:
            entry_of_path, leaders = listed.setdefault(entry.path, (entry, []))
            if leader in leaders:
                raise CheckpointError(f"{directory}: object {entry.path} was written by two processes: not saved")
            if entry_of_path.sha256 != entry.sha256:
                raise CheckpointCorruptError(
                    f"{directory}: object {entry.path} differs between processes that have the same state: not saved"
                )
            leaders.append(leader)
    expected = {TRAIN, *(path for entry in entries for path in entry.objects)}
    odd = sorted(expected ^ {*listed, *(entry.path for entry in rest)})
    if odd:
        raise CheckpointError(f"{directory}: object {odd[0]} was written by no process: not saved")
    everywhere = len(group.leaders)
    placed = [
        entry
        if len(leaders) == everywhere or systems is None
        else dataclasses.replace(entry, host=systems.hosts[leaders[0]])
        for entry, leaders in listed.values()
    ]
    return [*placed, *rest]


def _hosts(directory: str, group: SaveGroup) -> tuple[list[SpreadHost], str]:
    """Return all hosts and this one, as the manifest lists them.

    Returns nothing if all processes share a file system.
    """
    systems = group.file_systems
    if systems is None or not systems.spread:
        return [], ""
    own = systems.directories[0]
    hosts = [
        SpreadHost(systems.hosts[leader], systems.at(leader), systems.directories[leader] + directory.removeprefix(own))
        for leader in systems.leaders
    ]
    return hosts, systems.host
