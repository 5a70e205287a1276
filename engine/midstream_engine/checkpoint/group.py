"""Several processes save one checkpoint: who writes what, and how they find each other, late or dead.

They meet in the checkpoint's directory, on the file system that they share, and use no collectives: those belong to the
training step, which goes on meanwhile. Process 0 makes the directory; every process writes the cells that are its own
and then a *part*, the list of what it wrote; process 0 collects the parts, checks that no cell is missing, and commits.
Who is at it touches a file of its own from time to time, so that a slow process is told from a dead one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from midstream_engine.checkpoint.boxes import Box, overlap, volume
from midstream_engine.checkpoint.discover import read_manifest
from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.grid import cells_of, grid_of
from midstream_engine.checkpoint.packed import pack, unpack
from midstream_engine.checkpoint.snapshot import HostArray
from midstream_engine.records import MANIFEST, Manifest, ObjectEntry, read_json, write_bytes, write_json

POLL = 0.02  # seconds


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes that save together, as one of them sees it."""

    process: int
    count: int
    serial: int  # of this save: the same on all processes, another one for every try
    timeout: float = 60.0  # seconds without a sign of life after which a process is given up

    @property
    def leads(self) -> bool:
        return self.process == 0


def owner(array: HostArray, ordinal: int, cell: Box) -> int | None:
    """The process that writes cell number ``ordinal``: in turn one of those that hold all of it. None: none does."""
    if array.holders is None:
        return 0
    able = [
        process
        for process, boxes in array.holders.items()
        if sum(volume(part) for box in boxes if (part := overlap(box, cell)) is not None) == volume(cell)
    ]
    return able[ordinal % len(able)] if able else None


def check_owners(arrays: Sequence[HostArray]) -> None:
    """CheckpointError where a cell is spread over processes. The same on all of them, before anything is written."""
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        for ordinal, (index, cell) in enumerate(cells_of(array.shape, grid) if grid else ()):
            if owner(array, ordinal, cell) is None:
                raise CheckpointError(
                    f"{array.name}: no process holds the whole of its cell {list(index)}; "
                    f"give each process a part of it that its grid of {list(grid)} cells divides"
                )


def lent_pieces(array: HostArray, process: int) -> list[tuple[Box, np.ndarray]]:
    """The pieces of a small array that ``process`` has to hand to process 0, which packs it."""
    if array.holders is None or process == 0:
        return []
    first: dict[Box, int] = {}
    for holder, boxes in array.holders.items():
        for box in boxes:
            first.setdefault(box, holder)
    return [(box, data) for box, data in array.pieces if first[box] == process]


class Meeting:
    """The files by which the processes of one save find each other; gone before the manifest is written."""

    def __init__(self, directory: str, group: Group):
        self._directory, self._group = directory, group
        self._folder = os.path.join(directory, f".save-{group.serial}")

    def _at(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def open(self) -> None:
        """Process 0: the directory is ready. Others: wait for that."""
        if self._group.leads:
            os.makedirs(self._folder)
            return
        self._until(lambda: os.path.isdir(self._folder), {0}, "has not made the directory")

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Give signs of life as long as the context lasts."""
        done, path = threading.Event(), self._at(f"alive-{self._group.process}")

        def touch() -> None:
            beats = 0
            while True:
                # The directory may be gone: process 0 has ended the save, well or not.
                with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
                    file.write(str(beats))
                beats += 1
                if done.wait(self._group.timeout / 8):
                    return

        thread = threading.Thread(target=touch, name="alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def hand_in(self, objects: Sequence[ObjectEntry], lent: Sequence[tuple[str, Box, np.ndarray]]) -> None:
        """What this process wrote, and the pieces of small arrays that it holds for process 0."""
        process = self._group.process
        pieces = {f"{number}": data for number, (_, _, data) in enumerate(lent)}
        write_bytes(self._at(f"lent-{process}"), pack(pieces))
        entries = [entry.to_json() for entry in objects]
        part = {"objects": entries, "lent": [[name, [list(side) for side in box]] for name, box, _ in lent]}
        write_json(self._at(f"part-{process}"), part)

    def collect(self) -> tuple[list[ObjectEntry], list[tuple[str, Box, np.ndarray]]]:
        """Process 0: the parts of all others. CheckpointError naming the one that is dead."""
        others = set(range(1, self._group.count))
        missing = set(others)

        def arrived() -> bool:
            missing.difference_update([p for p in missing if os.path.exists(self._at(f"part-{p}"))])
            return not missing

        self._until(arrived, missing, "has given no sign of life")
        objects, lent = [], []
        for process in sorted(others):
            part = read_json(self._at(f"part-{process}"))
            objects += [ObjectEntry.from_json(entry, f"part {process}") for entry in part["objects"]]
            with open(self._at(f"lent-{process}"), "rb") as file:
                pieces = unpack(file.read())
            for number, (name, box) in enumerate(part["lent"]):
                lent.append((name, tuple((start, stop) for start, stop in box), pieces[f"{number}"]))
        return objects, lent

    def outcome(self) -> Manifest:
        """Others: what process 0 made of it. CheckpointError where it gave up or died."""
        manifest = os.path.join(self._directory, MANIFEST)

        def decided() -> bool:
            return os.path.exists(manifest) or not os.path.isdir(self._directory)

        self._until(decided, {0}, "has given no sign of life")
        if not os.path.exists(manifest):
            raise CheckpointError(f"{self._directory}: process 0 gave the save up; its log says why")
        return read_manifest(self._directory)

    def _until(self, ready: Callable[[], bool], awaited: set[int], what: str) -> None:
        """Wait until ``ready``, as long as every process of ``awaited`` shows signs of life."""
        seen: dict[int, tuple[str, float]] = {}
        while not ready():
            now = time.monotonic()
            for process in sorted(awaited):
                beat = self._beat(process)
                if process not in seen or seen[process][0] != beat:
                    seen[process] = beat, now  # by this machine's clock: those of others do not matter
                elif now - seen[process][1] > self._group.timeout:
                    raise CheckpointError(
                        f"{self._directory}: process {process} of {self._group.count} {what} for "
                        f"{self._group.timeout:.0f} s: not saved"
                    )
            time.sleep(POLL)

    def _beat(self, process: int) -> str:
        try:
            with open(self._at(f"alive-{process}"), encoding="ascii") as file:
                return file.read()
        except OSError:
            return ""
