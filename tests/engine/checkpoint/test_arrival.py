"""A checkpoint is read while it arrives, and what was read counts only if the manifest has its hashes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core import records
from midstream_engine.checkpoint.array_names import flatten, flatten_shardings
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading import restore
from midstream_engine.checkpoint.loading.arrival import Arrival
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from support.checkpoints.checkpoint_states import plain_state, save

PATIENCE = 60.0  # seconds
DEVICE = SingleDeviceSharding(jax.devices()[0])


class Copy:
    """A run whose checkpoint of step 7 is complete, and that of step 9 arrives beside it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, source = records.RunPaths(str(root), "r"), records.RunPaths(str(root), "source")
        self.older, self.tree = plain_state(1), plain_state(2)
        first = save(self.paths, self.older)
        self.old = self.paths.checkpoint(first.name)
        sent = save(source, self.tree, step=9)
        self.sent, self.directory = Path(source.checkpoint(sent.name)), Path(self.paths.checkpoint(sent.name))
        self.reread: list[str] = []
        self.types: dict[str, str] = {}  # of arrays that are expected with another type
        self._read = restore.read_checked
        monkeypatch.setattr(restore, "read_checked", self._recorded)

    def _recorded(self, store: Any, entry: Any, *rest: Any, **more: Any) -> str:
        self.reread.append(entry.path)
        return self._read(store, entry, *rest, **more)

    def chunks(self) -> list[str]:
        """The paths of all chunks."""
        return [entry.path for entry in read_manifest(str(self.sent)).object_entries if "/c/" in entry.path]

    def bring(self, *paths: str, source: Path | None = None) -> None:
        """Give objects their names, as a copy does."""
        for path in paths:
            target = self.directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy((source or self.sent) / path, self.directory / "part")
            os.replace(self.directory / "part", target)

    def bring_all(self) -> None:
        """Bring every object, and the manifest last."""
        self.bring(*(entry.path for entry in read_manifest(str(self.sent)).object_entries), records.MANIFEST)

    def arrival(self) -> Arrival:
        """Read what has arrived once, until it waits for more."""
        again, looks = threading.Event(), []

        def find() -> str | None:
            looks.append(1)
            if len(looks) > 1:
                arrival._ended.set()  # what arrives from here on is left to the restore
                again.set()
            return str(self.directory)

        shardings = flatten_shardings(self.tree, DEVICE)
        entries = read_manifest(self.old).array_entries
        expected = [dataclasses.replace(entry, dtype=self.types.get(entry.name, entry.dtype)) for entry in entries]
        arrival = Arrival(find, expected, shardings)
        arrival.start()
        assert again.wait(PATIENCE)
        return arrival

    def restored(self, arrival: Arrival) -> dict[str, np.ndarray]:
        """Restore with what was read early; the arrays by name."""
        tree = restore_checkpoint(str(self.directory), self.tree, DEVICE, arrival=arrival).tree
        return {name: np.asarray(array.value) for name, array in flatten(tree).items()}

    def wanted(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(array.value) for name, array in flatten(self.tree).items()}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    return Copy(tmp_path, monkeypatch)


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


def test_objects_that_arrived_are_not_read_again(copy: Copy) -> None:
    early, late = copy.chunks()[:-1], copy.chunks()[-1:]
    assert early
    copy.bring(*early)
    arrival = copy.arrival()
    copy.bring_all()
    assert same(copy.restored(arrival), copy.wanted())
    assert [path for path in copy.reread if "/c/" in path] == late


def other_content(copy: Copy) -> None:
    copy.bring(*copy.chunks(), source=Path(copy.old))


def wrong_size(copy: Copy) -> None:
    copy.bring(*copy.chunks())
    os.truncate(copy.directory / copy.chunks()[0], 100)


def damaged(copy: Copy) -> None:
    copy.bring(*copy.chunks())
    path = copy.directory / copy.chunks()[-1]
    content = bytearray(path.read_bytes())
    content[50] ^= 4
    path.write_bytes(content)


def nothing(copy: Copy) -> None:
    copy.directory.mkdir(parents=True)


@pytest.mark.parametrize("before", [other_content, wrong_size, damaged, nothing])
def test_objects_with_other_hashes_are_read_again(copy: Copy, before: Callable[[Copy], None]) -> None:
    before(copy)
    arrival = copy.arrival()
    copy.bring_all()
    assert same(copy.restored(arrival), copy.wanted())
    assert sorted(path for path in copy.reread if "/c/" in path) == sorted(copy.chunks())


def test_damage_after_the_early_read_does_not_reach_the_state(copy: Copy) -> None:
    """The bytes in memory count: they have the manifest's hashes, whatever becomes of the file."""
    copy.bring(*copy.chunks())
    arrival = copy.arrival()
    copy.bring_all()
    (copy.directory / copy.chunks()[0]).write_bytes(b"")
    assert same(copy.restored(arrival), copy.wanted())
    with pytest.raises(CheckpointCorruptError):
        restore_checkpoint(str(copy.directory), copy.tree, DEVICE)


def test_other_checkpoint_is_not_taken_for_the_arrived_one(copy: Copy) -> None:
    copy.bring(*copy.chunks())
    arrival = copy.arrival()
    found = restore_checkpoint(copy.old, copy.older, DEVICE, arrival=arrival).tree
    assert same(
        {name: np.asarray(array.value) for name, array in flatten(found).items()},
        {name: np.asarray(array.value) for name, array in flatten(copy.older).items()},
    )


def test_arrays_of_another_type_are_read_again(copy: Copy) -> None:
    copy.types["model/wide"] = "int32"
    copy.bring(*copy.chunks())
    arrival = copy.arrival()
    copy.bring_all()
    assert same(copy.restored(arrival), copy.wanted())
    assert sorted(path for path in copy.reread if "/c/" in path) == sorted(copy.chunks())
