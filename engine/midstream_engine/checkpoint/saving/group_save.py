"""Several processes save one checkpoint: who writes what, and how they come to one outcome.

They meet at their board and use no collectives: those belong to the training step, which goes on meanwhile. Every
process writes the cells that are its own and hands in a *part*, the list of what it wrote; process 0 collects the
parts, checks that no cell is missing, and commits. Where they share no file system, each place keeps what its processes
hold, the small objects lie at all of them, and the manifest says where the others are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.format.boxes import Box, overlap, volume, within
from midstream_engine.checkpoint.format.chunk_grid import chunks_of, grid_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.packed_arrays import pack, unpack
from midstream_engine.checkpoint.saving.save_fence import Fenced
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.processes.message_board import Lost, MessageBoard
from midstream_engine.processes.shared_file_systems import SharedFileSystems
from midstream_engine.records import Manifest, ObjectEntry

GATHERED = 1 << 30  # bytes of cells spread over processes that process 0 puts together, at most


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes that save together, as one of them sees it. ``places``: None where they share a file system (or a
    bucket), which is to be found out, not assumed."""

    board: MessageBoard
    sequence: int  # of this save: the same on all processes, another one for every try
    places: SharedFileSystems | None = None
    patience: float = 1800.0  # seconds that a process which is alive may keep the others waiting

    @property
    def process(self) -> int:
        return self.board.process

    @property
    def count(self) -> int:
        return self.board.count

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which collects and commits."""
        return self.process == 0

    @property
    def spread(self) -> bool:
        return self.places is not None and self.places.spread

    @property
    def here(self) -> list[int]:
        """The processes that write to the same place as this one."""
        places = self.places
        return list(range(self.count)) if places is None else places.at(places.first[self.process])

    @property
    def leads_here(self) -> bool:
        return self.here[0] == self.process

    @property
    def leaders(self) -> list[int]:
        """The first process of each place."""
        return [0] if self.places is None else self.places.leaders


def owner(array: HostArray, ordinal: int, cell: Box, among: Collection[int] | None = None) -> int | None:
    """The process that writes cell number ``ordinal``: in turn one of those (of ``among``) that hold all of it. None:
    none does."""
    if array.holders is None:
        return 0 if among is None or 0 in among else min(among)
    able = [
        process
        for process, boxes in array.holders.items()
        if (among is None or process in among)
        and sum(volume(part) for box in boxes if (part := overlap(box, cell)) is not None) == volume(cell)
    ]
    return able[ordinal % len(able)] if able else None


def straddled(array: HostArray) -> list[Box]:
    """The cells that no process holds the whole of."""
    grid = grid_of(array.axes, array.shape, array.dtype)
    if not grid or array.holders is None:
        return []
    cells = enumerate(chunks_of(array.shape, grid))
    return [cell for ordinal, (_, cell) in cells if owner(array, ordinal, cell) is None]


def check_owners(arrays: Sequence[HostArray]) -> None:
    """CheckpointError where so many cells are spread over processes that process 0 cannot put them together. The same
    on all of them, before anything is written."""
    total = 0
    for array in arrays:
        cells = straddled(array)
        total += sum(map(volume, cells)) * numpy_dtype(array.dtype).itemsize
        if total > GATHERED:
            grid = grid_of(array.axes, array.shape, array.dtype)
            raise CheckpointError(
                f"{array.name}: no process holds the whole of its cell at {[start for start, _ in cells[0]]}, and of "
                f"such cells there are more than {GATHERED >> 20} MiB; give each process a part that its grid of "
                f"{list(grid)} cells divides"
            )


def lent_pieces(array: HostArray, process: int) -> list[tuple[Box, np.ndarray]]:
    """The pieces that ``process`` has to hand to process 0, which packs small arrays and writes the cells that no
    process holds the whole of."""
    if array.holders is None or process == 0:
        return []
    first: dict[Box, int] = {}
    for holder, boxes in array.holders.items():
        for box in boxes:
            first.setdefault(box, holder)
    own = [(box, data) for box, data in array.pieces if first[box] == process]
    if not grid_of(array.axes, array.shape, array.dtype):
        return own
    return [
        (shared, np.ascontiguousarray(data[within(shared, box)]))
        for cell in straddled(array)
        for box, data in own
        if (shared := overlap(box, cell)) is not None
    ]


class SaveRendezvous:
    """One save of a group, at the board: who is ready, who wrote what, how it ended. What goes wrong with one process
    goes wrong with all of them, and says whose fault it was."""

    def __init__(self, directory: str, group: Group):
        self._directory, self._group, self._board = directory, group, group.board
        self._prefix = f"save-{group.sequence}-"
        self._heard_of_it = False  # from another process: that the save has failed

    def ready(self) -> None:
        """The first process of each place: the directory there is empty, the others may write to it."""
        for process in self._group.here:
            if process != self._group.process:
                self._tell("ready", b"", process)

    def await_ready(self) -> None:
        self._hear("ready", self._group.here[0])

    def hand_in(self, objects: Sequence[ObjectEntry], lent: Sequence[tuple[str, Box, np.ndarray]]) -> None:
        """What this process wrote, and the pieces of small arrays that it holds, for process 0."""
        pieces = {f"{number}": data for number, (_, _, data) in enumerate(lent)}
        listed = {
            "objects": [entry.to_json() for entry in objects],
            "lent": [[name, [list(side) for side in box]] for name, box, _ in lent],
        }
        self._tell("part", _joined(listed, pack(pieces)), 0)

    def collect(self) -> tuple[dict[int, list[ObjectEntry]], list[tuple[str, Box, np.ndarray]]]:
        """Process 0: what each of the others wrote, and the pieces that they lend."""
        objects: dict[int, list[ObjectEntry]] = {}
        lent: list[tuple[str, Box, np.ndarray]] = []
        for process in range(1, self._group.count):
            listed, packed = _parted(self._hear("part", process))
            objects[process] = [ObjectEntry.from_json(entry, f"part {process}") for entry in listed["objects"]]
            pieces = unpack(packed)
            for number, (name, box) in enumerate(listed["lent"]):
                lent.append((name, tuple((start, stop) for start, stop in box), pieces[f"{number}"]))
        return objects, lent

    def share(self, files: Mapping[str, bytes]) -> None:
        """Process 0: what lies at every place, for the first process of each; returns when it lies there."""
        others = self._group.leaders[1:]
        payload = _joined({"sizes": {path: len(data) for path, data in files.items()}}, b"".join(files.values()))
        for process in others:
            self._tell("rest", payload, process)
        for process in others:
            self._hear("stored", process)

    def shared(self) -> dict[str, bytes]:
        """The first process of another place: what process 0 shares."""
        listed, data = _parted(self._hear("rest", 0))
        files, begin = {}, 0
        for path, size in listed["sizes"].items():
            files[path] = data[begin : begin + size]
            begin += size
        return files

    def stored(self) -> None:
        self._tell("stored", b"", 0)

    def committed(self, manifest: Manifest) -> None:
        """Process 0: it is a checkpoint."""
        payload = json.dumps(manifest.to_json()).encode()
        for process in range(1, self._group.count):
            self._tell("outcome", payload, process)

    def outcome(self) -> Manifest:
        """Others: the manifest that process 0 has committed."""
        return Manifest.from_json(json.loads(self._hear("outcome", 0)), "what process 0 committed")

    def gave_up(self, error: BaseException) -> None:
        """Tell the others that this process ends the save: process 0 all of them, others process 0 and those that wait
        for them."""
        kind = "fenced" if isinstance(error, Fenced) else "failed"
        text = str(error).partition("\n")[0]
        said = text if text.startswith("process ") else f"process {self._group.process}: {text}"
        if self._heard_of_it and not self._group.leads:
            return  # so have the others
        group = self._group
        others = range(group.count) if group.leads else {0, *(group.here if group.leads_here else ())}
        for process in set(others) - {group.process}:
            # What went before is gone: whatever the other waits for now, it hears this.
            for word in ("ready", "part", "rest", "stored", "outcome"):
                self._send(word, json.dumps({"kind": kind, "why": said}).encode(), process, b"!")

    def close(self) -> None:
        self._board.forget(self._prefix)

    def _tell(self, word: str, payload: bytes, to: int) -> None:
        self._send(word, payload, to, b" ")

    def _send(self, word: str, payload: bytes, to: int, mark: bytes) -> None:
        with self._named():
            self._board.post(self._prefix + word, mark + payload, to)

    def _hear(self, word: str, sender: int) -> bytes:
        with self._named():
            payload = self._board.take(self._prefix + word, sender, self._group.patience)
        if payload[:1] == b" ":
            return payload[1:]
        self._heard_of_it = True
        said = json.loads(payload[1:])
        raise (Fenced if said["kind"] == "fenced" else CheckpointError)(said["why"])

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            raise CheckpointError(f"{self._directory}: {error}: not saved") from error


def give_up(group: Group, error: BaseException) -> None:
    """A process that cannot even begin its share of a save: the others are told, and ``error`` is raised."""
    SaveRendezvous("", group).gave_up(error)
    raise error


def _joined(listed: Mapping[str, Any], data: bytes) -> bytes:
    text = json.dumps(listed).encode()
    return len(text).to_bytes(8, "big") + text + data


def _parted(payload: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(payload[:8], "big")
    return json.loads(payload[8 : 8 + length]), payload[8 + length :]
