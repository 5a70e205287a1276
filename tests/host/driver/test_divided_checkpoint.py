"""A placed checkpoint is divided over the processes of an attempt, before its trainer is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.driver.divided_checkpoint import divide
from midstream_host.driver.reshard.checkpoint import StoredCheckpoint
from midstream_host.driver.reshard.stored_ranks import stored_ranks
from midstream_host.driver.work_directory import PlacedCheckpoint

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def placed(directory: Path, source: Path) -> PlacedCheckpoint:
    """A checkpoint as the driver places it, beside a file of another checkpoint."""
    shutil.copytree(source, directory / source.name)
    (directory / "latest").write_text(source.name)
    files = sorted(str(path.relative_to(directory)) for path in (directory / source.name).rglob("*") if path.is_file())
    return PlacedCheckpoint(str(directory / source.name), 4, "d", "d", str(directory), ["latest", *files])


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed-zero3"])
def test_other_number_of_processes_gets_its_own_parts(tmp_path: Path, name: str, capsys) -> None:
    restored = placed(tmp_path, FIXTURES / "trainers" / name / "global_step4")
    digests = StoredCheckpoint(restored.path).digests()
    divided = divide(restored, "deepspeed", 3)
    assert (divided.path, divided.step, divided.root_digest) == (restored.path, 4, "d")
    assert stored_ranks(divided.path) == (3, 1)
    assert StoredCheckpoint(divided.path).digests() == digests
    assert sorted(divided.files) == sorted(contents(tmp_path))  # what the trainer is watched to open
    assert divided.divided == (2, 3, digests)
    assert "divided over 3 data-parallel processes, saved by 2; equal before and after: " in capsys.readouterr().out


def test_same_number_and_other_trainers_keep_their_files(tmp_path: Path) -> None:
    restored = placed(tmp_path, FIXTURES / "trainers/deepspeed/global_step4")
    before = contents(tmp_path)
    assert divide(restored, "deepspeed", 2) is restored
    assert divide(restored, "dcp", 3) is restored
    assert contents(tmp_path) == before


def test_what_cannot_be_divided_ends_the_start(tmp_path: Path) -> None:
    restored = placed(tmp_path, FIXTURES / "neox/llama-bf16-z1-tp2-pp2-dp2/global_step3")
    before = contents(tmp_path)
    with pytest.raises(records.RecordError, match="6 processes cannot have the 4 model-parallel ranks"):
        divide(restored, "deepspeed", 6)
    assert contents(tmp_path) == before
    assert stored_ranks(divide(restored, "deepspeed", 4).path).data == 1
