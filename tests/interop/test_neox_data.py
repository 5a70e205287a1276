"""NeoX's data as it lies: the samples that NeoX's own code gives, whatever the split over ranks.

``expected.json`` was written by tests/fixtures/neox/generate_data.py with NeoX's own datasets and samplers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from midstream_engine.config.data import DataConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported.imported_data import SCHEME, Imported
from midstream_engine.data.imported.neox_dataset import import_neox
from midstream_engine.data.order.batches import TrainingBatches
from midstream_engine.data.order.mixture import open_data
from midstream_engine.data.tokenize.prepare import open_training
from midstream_engine.data.tokenize.tokenizer import load_tokenizer

DATA = Path(__file__).parent.parent / "fixtures" / "neox" / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


def imported(root: Path, name: str, where: Path = DATA) -> str:
    single = name == "single"
    prefixes = ["single"] if single else ["part0", "part1", "part2"]
    return import_neox(
        str(root), [str(where / prefix) for prefix in prefixes], None if single else EXPECTED["weights"], split=single,
        samples=EXPECTED["samples"], seq_len=EXPECTED["length"], seed=EXPECTED["seed"], tokenizer="ids:64",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["single", "blended"])
def test_the_next_100_updates_read_the_samples_that_neox_would_have(name: str, tmp_path: Path) -> None:
    data = open_data(imported(tmp_path, name))
    assert isinstance(data, Imported)
    length = EXPECTED["length"] + 1
    batches = TrainingBatches(data, seq_len=length, batch_size=EXPECTED["batch"], seed=0, shuffle=False)
    found = []
    for update in range(EXPECTED["first"], EXPECTED["first"] + 100):
        batch = batches.batch(update)
        assert batch.loss_mask[:, :-1].all()
        assert not batch.loss_mask[:, -1].any()
        found.append(hashlib.sha256(batch.tokens.astype("<i4").tobytes()).hexdigest())
    assert found == EXPECTED[name]


def test_data_is_linked_and_is_found_again_by_its_digest(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "there")
    directory = imported(tmp_path / "made" / "data", "single", tmp_path / "there")
    assert os.path.samefile(tmp_path / "there" / "single.bin", Path(directory) / "0.bin")
    config = DataConfig(tokenizer="ids:64", train_urls=[f"{SCHEME}{directory}"], shuffle=False, next_token=True)
    root = tmp_path / "root"
    first = open_training(str(root), config, load_tokenizer("ids:64", ""), seq_len=EXPECTED["length"])
    shutil.rmtree(tmp_path / "made")
    again = open_training(
        str(root), config, load_tokenizer("ids:64", ""), seq_len=EXPECTED["length"], wanted=first.digest
    )
    assert again.directory == first.directory == str(root / "data" / os.path.basename(directory))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    where = tmp_path / "there"
    shutil.copytree(DATA, where)
    for path in where.glob("single_train*_shuffle_idx.npy"):
        path.unlink()
    with pytest.raises(DataError, match="shuffle_idx"):
        imported(tmp_path / "a", "single", where)
    for path in where.glob("single_train*_doc_idx.npy"):
        path.unlink()
    with pytest.raises(DataError, match="index maps"):
        imported(tmp_path / "a", "single", where)
    index = (where / "part0.idx").read_bytes()
    (where / "part0.idx").write_bytes(b"XX" + index[2:])
    with pytest.raises(DataError, match="MMIDIDX"):
        imported(tmp_path / "a", "blended", where)
    (where / "part0.idx").write_bytes(index[:200])
    with pytest.raises(DataError, match="cut off"):
        imported(tmp_path / "a", "blended", where)
    (where / "part0.idx").write_bytes(index)
    os.truncate(where / "part0.bin", 100)
    with pytest.raises(DataError, match=r"part0\.bin: is cut off"):
        imported(tmp_path / "a", "blended", where)
    assert not (tmp_path / "a").exists()
