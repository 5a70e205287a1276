"""NeoX's data, read in place: samples equal NeoX's for any split over ranks.

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
import yaml

from midstream_engine.config.data import DataConfig
from midstream_engine.config.load import load_config
from midstream_engine.convert import main
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported_data import ImportedData
from midstream_engine.data.imported_files import SCHEME
from midstream_engine.data.mixture import open_data
from midstream_engine.data.neox_dataset import import_neox
from midstream_engine.data.prepared_data import open_training
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from support.paths import FIXTURES

NEOX = FIXTURES / "neox"
DATA = NEOX / "data"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


def imported(root: Path, name: str, where: Path = DATA, vocabulary: int = 64) -> str:
    single = name == "single"
    prefixes = ["single"] if single else ["part0", "part1", "part2"]
    return import_neox(
        str(root), [str(where / prefix) for prefix in prefixes], None if single else EXPECTED["weights"], split=single,
        samples=EXPECTED["samples"], seq_len=EXPECTED["length"], seed=EXPECTED["seed"], tokenizer=f"ids:{vocabulary}",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["single", "blended"])
def test_next_100_updates_read_neoxs_samples(name: str, tmp_path: Path) -> None:
    data = open_data(imported(tmp_path, name))
    assert isinstance(data, ImportedData)
    length = EXPECTED["length"] + 1
    batches = TrainingBatches(data, seq_len=length, batch_size=EXPECTED["batch"], seed=0, shuffle=False)
    found = []
    for update in range(EXPECTED["first"], EXPECTED["first"] + 100):
        batch = batches.batch(update)
        assert batch.loss_mask[:, :-1].all()
        assert not batch.loss_mask[:, -1].any()
        found.append(hashlib.sha256(batch.tokens.astype("<i4").tobytes()).hexdigest())
    assert found == EXPECTED[name]


def test_imported_run_reads_its_blend_of_datasets(tmp_path: Path) -> None:
    """The checkpoint's configuration names datasets with weights; the run's data is then NeoX's blend."""
    shutil.copytree(NEOX / "sequential-fp32-z0-dp1", tmp_path / "run")
    shutil.copytree(DATA, tmp_path / "text")
    (path,) = (tmp_path / "run").glob("global_step*/configs/*")
    names = ["train_batch_size", "train_micro_batch_size_per_gpu"]
    config = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key not in names}
    config |= {
        "train-data-paths": [str(tmp_path / "text" / f"part{number}") for number in range(3)],
        "train-data-weights": [5, 3, 2], "valid-data-paths": ["/v"], "test-data-paths": ["/t"],
        "train_batch_size": EXPECTED["batch"], "train-iters": EXPECTED["samples"] // EXPECTED["batch"],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    assert main([str(tmp_path / "run"), str(tmp_path / "out"), "--without-reference-losses"]) == 0
    settings = load_config(["--config_path", str(tmp_path / "out" / "train.yaml")]).config
    (url,) = settings.data.train_urls
    data = open_data(url.removeprefix(SCHEME))
    batches = TrainingBatches(
        data, seq_len=EXPECTED["length"] + 1, batch_size=settings.trainer.train_batch_size, seed=0,
        shuffle=settings.data.shuffle,
    )  # fmt: skip
    batch = batches.batch(EXPECTED["first"])
    found = hashlib.sha256(batch.tokens.astype("<i4").tobytes()).hexdigest()
    assert found == EXPECTED["blended"][0]


def test_data_is_linked_and_found_by_digest(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path / "there")
    directory = imported(tmp_path / "made" / "data", "single", tmp_path / "there")
    assert os.path.samefile(tmp_path / "there" / "single.bin", Path(directory) / "0.bin")
    config = DataConfig(tokenizer="ids:64", train_urls=[f"{SCHEME}{directory}"], shuffle=False, next_token=True)
    root = tmp_path / "root"
    first = open_training(str(root), config, load_tokenizer("ids:64", ""), seq_len=EXPECTED["length"])
    shutil.rmtree(tmp_path / "made")
    again = open_training(
        str(root), config, load_tokenizer("ids:64", ""), seq_len=EXPECTED["length"], expected_digest=first.digest
    )
    assert again.directory == first.directory == str(root / "data" / os.path.basename(directory))


def test_token_id_beyond_vocabulary_is_refused_at_import(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"part0\.bin: document \d+ has token id 6[0-3], but the vocabulary has 60 ids"):
        imported(tmp_path / "a", "blended", vocabulary=60)
    assert not (tmp_path / "a").exists()


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
    with pytest.raises(DataError, match="truncated"):
        imported(tmp_path / "a", "blended", where)
    (where / "part0.idx").write_bytes(index)
    os.truncate(where / "part0.bin", 100)
    with pytest.raises(DataError, match=r"part0\.bin: truncated"):
        imported(tmp_path / "a", "blended", where)
    assert not (tmp_path / "a").exists()
