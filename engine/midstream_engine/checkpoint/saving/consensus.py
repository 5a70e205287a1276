"""Several processes write one checkpoint: see :mod:`group` for who does what."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from midstream_engine.checkpoint.errors import CheckpointCorrupt, CheckpointError
from midstream_engine.checkpoint.format.boxes import Box
from midstream_engine.checkpoint.format.objects import write_object
from midstream_engine.checkpoint.saving import save
from midstream_engine.checkpoint.saving.group_save import Group, SaveRendezvous, lent_pieces, owner
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.checkpoint_store import Store
from midstream_engine.records import MANIFEST, TRAIN, ArrayEntry, Manifest, ObjectEntry, RunPaths, SpreadHost

Lent = list[tuple[str, Box, np.ndarray]]


def finish_with_consensus(
    paths: RunPaths,
    directory: str,
    arrays: list[HostArray],
    document: dict[str, Any],
    group: Group,
    *,
    step: int,
    attempt: int,
    epoch: int,
) -> Manifest:
    """This process's share of a save, and what became of all of it: the manifest, on every process, when it is on the
    disk. Raises CheckpointError (or Fenced) on all processes where it fails on one."""
    meeting, needed = SaveRendezvous(directory, group), save.stored_bytes(arrays)
    keep = save.removed_on_failure if group.leads_here else save.reported
    try:
        with keep(directory, needed):
            if group.leads:
                name = {"step": step, "attempt": attempt, "epoch": epoch}
                return _lead(paths, directory, arrays, document, group, meeting, **name)
            return _follow(directory, arrays, group, meeting)
    except BaseException as error:
        meeting.gave_up(error)
        raise
    finally:
        meeting.close()


def _lead(
    paths: RunPaths,
    directory: str,
    arrays: list[HostArray],
    document: dict[str, Any],
    group: Group,
    meeting: SaveRendezvous,
    *,
    step: int,
    attempt: int,
    epoch: int,
) -> Manifest:
    """Process 0: write, collect, complete, commit."""
    store = _prepared(directory, arrays, group, meeting)
    objects, _ = _write_share(store, arrays, group)
    theirs, lent = meeting.collect()
    extra: dict[str, list[tuple[Box, np.ndarray]]] = {}
    for name, box, data in lent:
        extra.setdefault(name, []).append((box, data))
    whole_ones = [dataclasses.replace(a, pieces=[*a.pieces, *extra.get(a.name, [])]) for a in arrays]
    # What has to be put together from several processes lies with the small objects: at every place.
    rest = [*save.write_rest(store, whole_ones, document), *save.write_chunks(store, whole_ones, _belongs_to_none)]
    store.sync()
    entries = save.describe_arrays(whole_ones)
    listed = _listed(directory, entries, {0: objects, **theirs}, rest, group)
    written = save.written_of(entries, listed, document)
    hosts, host = _hosts(directory, group)
    if group.spread:
        meeting.share({entry.path: store.get(entry.path) for entry in rest})
    manifest = save.commit(paths, directory, written, step=step, attempt=attempt, epoch=epoch, hosts=hosts, host=host)
    store.close()
    meeting.committed(manifest)
    return manifest


def _follow(directory: str, arrays: list[HostArray], group: Group, meeting: SaveRendezvous) -> Manifest:
    """Another process: write its cells and hand in the list; at another place, keep what belongs to every place."""
    if group.leads_here:
        store = _prepared(directory, arrays, group, meeting)
    else:
        meeting.await_ready()
        store = open_store(directory)
    objects, lent = _write_share(store, arrays, group)
    arrays.clear()
    meeting.hand_in(objects, lent)
    del lent
    if group.leads_here:
        for path, data in meeting.shared().items():
            write_object(store, path, memoryview(data))
        store.sync()
        meeting.stored()
    manifest = meeting.outcome()
    if group.leads_here:
        assert group.places is not None
        manifest = dataclasses.replace(manifest, host=group.places.host)
        store.commit(MANIFEST, save.manifest_text(manifest))
    store.close()
    return manifest


def _prepared(directory: str, arrays: list[HostArray], group: Group, meeting: SaveRendezvous) -> Store:
    """The directory at this place, empty, after telling those who share it."""
    store = open_store(directory)
    if store.exists(MANIFEST):
        raise CheckpointError(f"{directory} is complete: a checkpoint is never overwritten")
    here = len(group.here) / group.count
    store.prepare(int(save.stored_bytes(arrays) * here) if group.spread else save.stored_bytes(arrays))
    meeting.ready()
    return store


def _write_share(store: Store, arrays: list[HostArray], group: Group) -> tuple[list[ObjectEntry], Lent]:
    """The cells that are this process's to write, and the pieces of small arrays that it hands to process 0. At each
    place lies all that its processes hold, so that they can go on from it without the others."""
    among = group.here if group.spread else None

    def mine(array: HostArray, number: int, box: Box) -> bool:
        return owner(array, number, box, among) == group.process

    objects = save.write_chunks(store, arrays, mine)
    store.sync()
    return objects, [(a.name, box, data) for a in arrays for box, data in lent_pieces(a, group.process)]


def _belongs_to_none(array: HostArray, number: int, box: Box) -> bool:
    return owner(array, number, box) is None


def _listed(
    directory: str,
    entries: list[ArrayEntry],
    cells: Mapping[int, list[ObjectEntry]],
    rest: list[ObjectEntry],
    group: Group,
) -> list[ObjectEntry]:
    """Every object once, with the place that holds it. CheckpointError unless all that the grids call for were written,
    each once at a place, and alike at each."""
    places = group.places
    found: dict[str, tuple[ObjectEntry, list[int]]] = {}
    for process, objects in sorted(cells.items()):
        leader = 0 if places is None else places.first[process]
        for entry in objects:
            known, leaders = found.setdefault(entry.path, (entry, []))
            if leader in leaders:
                raise CheckpointError(f"{directory}: object {entry.path} was written by two processes: not saved")
            if known.sha256 != entry.sha256:
                raise CheckpointCorrupt(
                    f"{directory}: object {entry.path} differs between processes that hold the same state: not saved"
                )
            leaders.append(leader)
    wanted = {TRAIN, *(path for entry in entries for path in entry.objects)}
    odd = sorted(wanted ^ {*found, *(entry.path for entry in rest)})
    if odd:
        raise CheckpointError(f"{directory}: object {odd[0]} was written by no process: not saved")
    everywhere = len(group.leaders)
    placed = [
        entry if len(leaders) == everywhere or places is None else _held(entry, places.hosts[leaders[0]])
        for entry, leaders in found.values()
    ]
    return [*placed, *rest]


def _held(entry: ObjectEntry, host: str) -> ObjectEntry:
    return dataclasses.replace(entry, host=host)


def _hosts(directory: str, group: Group) -> tuple[list[SpreadHost], str]:
    """What the manifest says of the places; nothing where there is one alone."""
    places = group.places
    if places is None or not places.spread:
        return [], ""
    own = places.directories[0]
    hosts = [
        SpreadHost(places.hosts[leader], places.at(leader), places.directories[leader] + directory.removeprefix(own))
        for leader in places.leaders
    ]
    return hosts, places.host
