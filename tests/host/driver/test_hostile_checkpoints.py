"""Checkpoints of other trainers as a hostile host would write them."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import torch_archive
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_finder import find_checkpoints, saved_state
from support.paths import FIXTURES
from support.trainers.checkpoint_cases import CASES, Case, refused


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_calls_is_not_called(copy: Callable[[Case], Path], tmp_path: Path) -> None:
    path, mark = copy(CASES["dcp"]), tmp_path / "called"
    for value in (Bomb(mark), {"storage_data": Bomb(mark)}):
        (path / ".metadata").write_bytes(pickle.dumps(value))
        assert ".metadata" in refused(CASES["dcp"], path)
    archive = path.parent / "ckpt.pt"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("archive/data.pkl", pickle.dumps({"step": 3, "bomb": Bomb(mark)}, 2))
    (found,) = find_checkpoints("glob", str(path.parent))
    assert (found.step, found.complete) == (3, True)
    assert saved_state("glob", str(archive)).optimizer is False
    assert not mark.exists()
    assert pickle.loads(pickle.dumps(Bomb(mark))) is None  # it is one that would have been called
    assert mark.exists()


def test_dcp_metadata_that_names_a_file_outside_is_refused(copy: Callable[[Case], Path]) -> None:
    path = copy(CASES["dcp"])
    data = (path / ".metadata").read_bytes()
    assert b"__0_0.distcp" in data
    (path / ".metadata").write_bytes(data.replace(b"__0_0.distcp", b"../../../etc"))
    assert "outside of the checkpoint" in refused(CASES["dcp"], path)


@pytest.mark.parametrize("deep", [b"(" * 100_000 + b".", b"]" * 100_000 + b"a" * 99_999 + b".", b"\x80\x02" + b"}" * 9])
def test_deep_and_broken_pickles_are_refused(copy: Callable[[Case], Path], deep: bytes) -> None:
    path = copy(CASES["dcp"])
    (path / ".metadata").write_bytes(deep)
    assert ".metadata" in refused(CASES["dcp"], path)


def test_sizes_in_files_are_never_trusted(copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy(CASES["huggingface"])
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "header would have" in refused(CASES["huggingface"], path)
    header = json.dumps({"a": {"data_offsets": [0, 1 << 62]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "names" in refused(CASES["huggingface"], path)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 50_000) + b"[" * 50_000)
    assert "not JSON" in refused(CASES["huggingface"], path)
    monkeypatch.setattr(torch_archive, "DIRECTORY_LIMIT", 64)
    shutil.copy(FIXTURES / "trainers/huggingface/checkpoint-6/model.safetensors", path / "model.safetensors")
    assert "no complete zip archive" in refused(CASES["huggingface"], path)


def test_many_files_and_deep_folders_are_refused(copy: Callable[[Case], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy(CASES["huggingface"])
    deep = path.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    assert "too deeply" in refused(CASES["huggingface"], path)
    shutil.rmtree(path / "d")
    monkeypatch.setattr("midstream_host.driver.checkpoints.checkpoint_tree.MAX_FILES", 3)
    assert "more than 3 files" in refused(CASES["huggingface"], path)


def test_incomplete_reasons_are_of_bounded_length() -> None:
    assert len(str(IncompleteError("x" * 10_000))) == 400
