"""Restore of a checkpoint onto any mesh.

Every object is read once, checked, and sent to the devices in parts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import cast

import jax
from jax.sharding import NamedSharding, Sharding

from midstream_core import zarr_metadata
from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import PACKED, TRAIN, ArrayEntry, Manifest, ObjectEntry, root_digest
from midstream_engine.array_types import PyTree
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.array_names import LogicalArray, flatten, flatten_shardings, unflatten
from midstream_engine.checkpoint.bounded_pool import Task, run_bounded
from midstream_engine.checkpoint.boxes import Box
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointCorruptError, CheckpointMismatchError, Difference
from midstream_engine.checkpoint.host_buffers import BufferPool
from midstream_engine.checkpoint.loading.array_assembly import ArrayAssembly
from midstream_engine.checkpoint.loading.arrival import Arrival, EarlyArrays
from midstream_engine.checkpoint.loading.checkpoint_records import check_train, read_manifest
from midstream_engine.checkpoint.loading.completeness import check_layout
from midstream_engine.checkpoint.loading.part_memory import PartBuffers, expect_parts
from midstream_engine.checkpoint.loading.spread_objects import check_within_reach
from midstream_engine.checkpoint.packed_arrays import unpack_entries
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.hashed_objects import read_checked, read_object
from midstream_engine.checkpoint.stores.object_store import ObjectStore
from midstream_engine.checkpoint.train_document import TrainDocument

AHEAD = 16  # objects whose read-ahead has started


@dataclasses.dataclass(frozen=True)
class Restored:
    """A restored state and its evidence."""

    tree: PyTree
    root_digest: str  # recomputed from the bytes that were read, and the manifest's hashes of the other objects
    train: TrainDocument  # train.json: state, provenance, reference_losses
    manifest: Manifest
    seconds: float


def restore_checkpoint(
    directory: str,
    template: PyTree,
    shardings: PyTree,
    *,
    only: str = "",
    first: First | None = None,
    arrival: Arrival | None = None,
) -> Restored:
    """Return the state in ``directory`` as arrays on devices.

    Besides the arrays, host memory has the objects in transfer (``bounded_pool.IN_FLIGHT``) and the parts that are
    being assembled, at most the size of two arrays.

    Args:
        directory: Directory or URL of the checkpoint.
        template: Pytree like the one that was saved, of arrays or ShapeDtypeStructs (inside NamedArrays for named ones,
            as ``eqx.filter_eval_shape`` returns them). Other leaves are copied from it.
        shardings: One sharding for each array leaf, or one for all.
        only: Prefix of the names of the wanted arrays (``model/``); ``template`` then has these alone. The objects of
            other arrays are neither read nor checked, and may be missing. Arrays below 1 MiB share one object, which is
            read and checked completely.
        first: Arrays that are read before the others, and what is done with them.
        arrival: Has read objects while they arrived; those with the manifest's hashes are not read again.

    Raises:
        CheckpointMismatchError: Names, axes, shapes or dtypes differ; raised before any array is read.
        CheckpointCorruptError: The bytes are not those that were saved; the message names the object.
        ValueError: ``template`` has arrays beyond ``only``.
    """
    start = time.monotonic()
    manifest = read_manifest(directory)
    check_layout(directory, manifest)
    expected = flatten(template)
    placed = flatten_shardings(template, shardings)
    beyond = [name for name in expected if not name.startswith(only)]
    if beyond:
        raise ValueError(f"the template has {beyond[0]}, which does not begin with {only!r}")
    check_fit(directory, manifest, expected, only)
    check_divides(directory, expected, placed)
    store = open_store(directory)
    objects = {entry.path: entry for entry in manifest.object_entries}
    needed = {TRAIN}.union(*(entry.objects for entry in manifest.array_entries if entry.name in expected))
    hashes = {path: entry.sha256 for path, entry in objects.items() if path not in needed}

    raw, hashes[TRAIN] = read_object(store, objects[TRAIN])
    try:
        train = check_train(json.loads(bytes(raw)), f"{directory}: object {TRAIN}")
    except ValueError as error:
        raise CheckpointCorruptError(f"{directory}: object {TRAIN}: not JSON ({error})") from error

    early = None if arrival is None else arrival.take(directory, manifest)
    arrays = _read_arrays(store, manifest, objects, placed, hashes, first, early)
    digest = root_digest(manifest.array_entries, hashes, train["state"])
    if digest != manifest.root_digest:
        raise CheckpointCorruptError(
            f"{directory}: root digest {digest} recomputed from the bytes "
            f"differs from the manifest's {manifest.root_digest}"
        )
    return Restored(
        tree=unflatten(template, arrays),
        root_digest=digest,
        train=train,
        manifest=manifest,
        seconds=time.monotonic() - start,
    )


@dataclasses.dataclass(frozen=True)
class First:
    """Arrays that are read before the others.

    ``ready`` gets them by name, on a thread of the restore, once they are on the devices. Each of their objects has
    been checked; the root digest has not, and the restore may still fail.
    """

    prefix: str  # of the arrays' names
    ready: Callable[[dict[str, jax.Array]], None]


def check_fit(where: str, manifest: Manifest, expected: dict[str, LogicalArray], only: str = "") -> None:
    """Check that the manifest has exactly the ``expected`` arrays.

    Only arrays whose names begin with ``only`` are compared.

    Raises:
        CheckpointMismatchError: The manifest has other arrays; the message has a diff.
    """
    stored = {entry.name: entry for entry in manifest.array_entries if entry.name.startswith(only)}
    different: list[Difference] = []
    for name in sorted(stored.keys() & expected.keys()):
        have, want = stored[name], expected[name]
        axes, shape = tuple(have.axes), tuple(have.shape)
        difference = Difference(
            name,
            axes=None if axes == want.axes else (axes, want.axes),
            shape=None if shape == want.shape else (shape, want.shape),
            dtype=None if have.dtype == want.dtype else (have.dtype, want.dtype),
        )
        if difference != Difference(name):
            different.append(difference)
    missing, extra = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    if missing or extra or different:
        raise CheckpointMismatchError(where, missing, extra, different)


def _mesh_axes(mapped: object) -> tuple[str, ...]:
    """Return the mesh axes that an entry of a sharding names."""
    if isinstance(mapped, tuple):
        return cast("tuple[str, ...]", mapped)
    return (mapped,) if isinstance(mapped, str) else ()


def check_divides(where: str, expected: dict[str, LogicalArray], shardings: dict[str, Sharding]) -> None:
    """Check that every sharding divides its array.

    Raises:
        CheckpointError: One does not; the message has the axis, and the counts that divide every such array.
    """
    lengths: dict[tuple[str, ...], int] = {}  # greatest common divisor of the axes that share some mesh axes
    flaw: tuple[str, str, int, int, tuple[str, ...]] | None = None
    for name, array in expected.items():
        sharding = shardings[name]
        if not isinstance(sharding, NamedSharding):
            try:
                sharding.shard_shape(array.shape)
            except ValueError as error:
                raise CheckpointError(f"{where} cannot be laid out on this mesh: {name}: {error}") from error
            continue
        for axis, length, mapped in zip(array.axes, array.shape, sharding.spec, strict=False):
            names = _mesh_axes(mapped)
            parts = math.prod(sharding.mesh.shape[mesh_axis] for mesh_axis in names)
            lengths[names] = math.gcd(lengths.get(names, 0), length)
            if length % parts and flaw is None:
                flaw = name, axis, length, parts, names
    if flaw is not None:
        name, axis, length, parts, names = flaw
        common = lengths[names]
        would = [str(count) for count in range(1, 2 * parts + 1) if common % count == 0]
        raise CheckpointError(
            f"{where} cannot be laid out on this mesh: {name}: its axis {axis}={length} does not divide over {parts} "
            f"devices ({' x '.join(names)}); {', '.join(would)} would divide every array"
        )


def _read_arrays(
    store: ObjectStore,
    manifest: Manifest,
    objects: dict[str, ObjectEntry],
    shardings: dict[str, Sharding],
    hashes: dict[str, str],
    first: First | None,
    early: EarlyArrays | None,
) -> dict[str, jax.Array]:
    """Return every array that has a sharding, on its devices.

    Args:
        store: Objects of the checkpoint.
        manifest: Its manifest.
        objects: Entries of all objects, by path.
        shardings: Shardings of the wanted arrays, by name.
        hashes: SHA-256 by path; has those of the objects that are not read, and receives the others.
        first: Arrays that are read before the others.
        early: Arrays that have some of their objects already.
    """
    entries = [entry for entry in manifest.array_entries if entry.name in shardings]
    leading = [entry.name for entry in entries if first is not None and entry.name.startswith(first.prefix)]
    entries = sorted(entries, key=lambda entry: first is not None and not entry.name.startswith(first.prefix))
    assemblies = {} if early is None else {**early.assemblies}
    expect_parts(
        (shardings[entry.name], entry.shape, numpy_dtype(entry.dtype))
        for entry in entries
        if entry.name not in assemblies
    )
    parts = PartBuffers()
    for entry in entries:
        if entry.name not in assemblies:
            assemblies[entry.name] = ArrayAssembly(entry, shardings[entry.name], parts)
    if early is not None:
        hashes.update((path, early_object.sha256) for path, early_object in early.objects.items())
    tasks: list[Task] = []
    blocks = BufferPool()

    def observe(path: str) -> memoryview:
        data, hashes[path] = read_object(store, objects[path])
        return data

    packed = [entry for entry in entries if not entry.grid]
    if packed:
        tasks.append((objects[PACKED].size, lambda: _take_packed(store.where, observe(PACKED), packed, assemblies)))
    for number, entry in enumerate(entries, 1):
        if entry.grid:
            tasks.append(_metadata_task(store.where, entry, objects, observe))
            tasks += _chunk_tasks(store, entry, objects, assemblies[entry.name], blocks, hashes)
        if first is not None and number == len(leading):
            leading_assemblies = {name: assemblies[name] for name in leading}
            tasks = _followed(tasks, functools.partial(_hand_over, leading_assemblies, first, parts))
    check_within_reach(store, manifest, [path for path in objects if path not in hashes])
    run_bounded(_announced(tasks, store, [path for path in objects if path not in hashes and "/c/" in path]))
    parts.settle()
    return {name: assembly.finish() for name, assembly in assemblies.items()}


def _hand_over(assemblies: dict[str, ArrayAssembly], first: First, parts: PartBuffers) -> None:
    parts.settle()
    first.ready({name: assembly.finish() for name, assembly in assemblies.items()})


def _followed(tasks: Sequence[Task], then: Callable[[], None]) -> list[Task]:
    """Return the tasks so that the last of them to end calls ``then``."""
    remaining, lock = len(tasks), threading.Lock()

    def counted(function: Callable[[], None]) -> None:
        nonlocal remaining
        function()
        with lock:
            remaining -= 1
            last = not remaining
        if last:
            then()

    return [(size, functools.partial(counted, function)) for size, function in tasks]


def _announced(tasks: Iterable[Task], store: ObjectStore, paths: Iterable[str]) -> Iterator[Task]:
    """Yield the tasks; with each, start to read the object ``AHEAD`` places further."""
    upcoming = iter(paths)
    for path in islice(upcoming, AHEAD):
        store.expect(path)
    for task in tasks:
        for path in islice(upcoming, 1):
            store.expect(path)
        yield task


def _metadata_task(
    where: str, entry: ArrayEntry, objects: dict[str, ObjectEntry], observe: Callable[[str], memoryview]
) -> Task:
    described = zarr.metadata_path(entry.name)

    def check() -> None:
        flaw = zarr_metadata.disagreement(bytes(observe(described)), entry)
        if flaw:
            raise CheckpointCorruptError(f"{where}: object {described}: {flaw}")

    return objects[described].size, check


def _chunk_tasks(
    store: ObjectStore,
    entry: ArrayEntry,
    objects: dict[str, ObjectEntry],
    assembly: ArrayAssembly,
    blocks: BufferPool,
    hashes: dict[str, str],
) -> list[Task]:
    """Return the tasks that read the chunks of an array.

    Chunks without a part on this process's devices are read and checked by other processes; their hashes are copied
    from the manifest.

    Args:
        store: Objects of the checkpoint.
        entry: The array.
        objects: Entries of all objects, by path.
        assembly: Receives the chunks.
        blocks: Buffers for chunks that are not read in place.
        hashes: SHA-256 by path; has those of chunks that were read before, and receives the others.
    """
    tasks: list[Task] = []
    for index, box in chunks_of(entry.shape, entry.grid):
        path = zarr.chunk_path(entry.name, index)
        if path in hashes:  # read while it arrived
            continue
        if not assembly.needs(box):
            hashes[path] = objects[path].sha256
            continue

        def read(path: str = path, box: Box = box) -> None:
            checksum = memoryview(bytearray(4))
            into = chain(assembly.buffers(box, blocks), [checksum])
            hashes[path] = read_checked(store, objects[path], into, chunk=True)
            assembly.accept(box)

        tasks.append((objects[path].size, read))
    return tasks


def _take_packed(where: str, raw: memoryview, entries: list[ArrayEntry], assemblies: dict[str, ArrayAssembly]) -> None:
    for entry, array in unpack_entries(f"{where}: object {PACKED}", raw, entries):
        assemblies[entry.name].put(array)
