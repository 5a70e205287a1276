"""Completeness of what Orbax 0.12.8 writes, in each of its layouts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints
from support.paths import FIXTURES, REPOSITORY
from support.trainers.checkpoint_cases import files_of

ROOT = FIXTURES / "trainers" / "orbax_layouts"
STEP = 4
# Layout and number of processes: the table of docs/reference/trainer-checkpoints.md.
LAYOUTS = {
    "one-item": 1,
    "composite": 1,
    "composite-with-json": 1,
    "json-only": 1,
    "arrays-of-numpy": 1,
    "prefix": 1,
    "prefix-with-hyphen": 1,
    "fixed-length": 1,
    "zarr-2": 1,
    "zarr-2-in-ocdbt": 1,
    "zarr-3": 1,
    "zarr-3-in-ocdbt": 1,
    "v1": 1,
    "v1-with-several": 1,
    "v1-of-a-run": 1,
    "two-processes": 2,
    "two-processes-of-scalars": 2,
}
# Of these nothing else in the checkpoint says that they have to be there: data of OCDBT, a second mark of the commit.
UNSEEN = ("d", "commit_success.txt", "_sharding", "orbax.checkpoint", "_CHECKPOINT_METADATA", "array_metadatas")
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def found(directory: Path, layout: str, ranks: int | None = None) -> Checkpoint:
    [one] = find_checkpoints("orbax", str(directory), "", ranks or LAYOUTS[layout])
    return one


@pytest.fixture
def copied(layout: str, tmp_path: Path) -> Path:
    """Return a copy of the layout's checkpoint."""
    shutil.copytree(ROOT / layout, tmp_path / layout)
    [path] = (tmp_path / layout).iterdir()
    return path


def test_tables_have_every_layout() -> None:
    assert {path.name for path in ROOT.iterdir()} == set(LAYOUTS)
    page = (REPOSITORY / "docs" / "reference" / "trainer-checkpoints.md").read_text()
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| (\d) \|", page)
    assert {name: int(ranks) for name, ranks in rows} == LAYOUTS


@each_layout
def test_layout_is_complete_and_has_its_step(layout: str) -> None:
    one = found(ROOT / layout, layout)
    assert (one.complete, one.reason, one.step) == (True, "", STEP)


@each_layout
def test_layout_without_the_marks_of_its_commit_is_refused(layout: str, copied: Path) -> None:
    for path in copied.rglob("commit_success.txt"):
        path.unlink()
    assert found(copied.parent, layout).complete  # its metadata have the time of the commit
    metadata = copied / "_CHECKPOINT_METADATA"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "commit_timestamp_nsecs": None}))
    assert "commit" in found(copied.parent, layout).reason


@each_layout
def test_layout_being_written_is_refused(layout: str, copied: Path) -> None:
    copied.rename(copied.with_name(f"{copied.name}.orbax-checkpoint-tmp"))
    assert "orbax-checkpoint-tmp" in found(copied.parent, layout).reason


@each_layout
def test_missing_part_of_a_layout_is_named(layout: str, copied: Path) -> None:
    for each in files_of(copied):
        name = each.relative_to(copied)
        if set(name.parts) & set(UNSEEN):
            continue
        content = each.read_bytes()
        each.unlink()
        one = found(copied.parent, layout)
        assert not one.complete, name
        assert set(name.parts) & set(one.reason.replace("/", " ").replace(":", " ").replace(",", " ").split()), one
        each.write_bytes(content)
    assert found(copied.parent, layout).complete


def test_process_with_a_part_of_an_array_has_a_store(tmp_path: Path) -> None:
    """One that had none to write has no store, and its checkpoint is complete."""
    for layout, complete in (("two-processes", False), ("two-processes-of-scalars", True)):
        shutil.copytree(ROOT / layout, tmp_path / layout)
        shutil.rmtree(tmp_path / layout / "4" / "items" / "ocdbt.process_1", ignore_errors=True)
        one = found(tmp_path / layout, layout)
        assert one.complete == complete
        assert complete or "ocdbt.process_1 is missing" in one.reason
    (tmp_path / "two-processes-of-scalars/4/items/array_metadatas/process_1").unlink()
    assert "ocdbt.process_1 is missing" in found(tmp_path / "two-processes-of-scalars", layout).reason
    assert "2 processes wrote it, and the run has 1" in found(ROOT / "two-processes", "two-processes", 1).reason


def test_zarr_3_may_leave_chunks_of_zeros_out(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "zarr-3", tmp_path / "zarr-3")
    metadata = tmp_path / "zarr-3" / "4" / "_METADATA"
    (tmp_path / "zarr-3" / "4" / "params.bias" / "c" / "0").unlink()
    assert found(tmp_path / "zarr-3", "zarr-3").reason == "params.bias has 0 chunks of 1"
    metadata.write_text(metadata.read_text().replace('fill_value": true', 'fill_value": false'))
    assert found(tmp_path / "zarr-3", "zarr-3").complete
