"""Levanter's token caches, read in place: samples and losses equal Levanter's.

The fixtures were made with Levanter by tests/fixtures/levanter/generate_data.py, on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from midstream_core.object_store.open_bucket import close_clients
from midstream_engine.convert import main
from midstream_engine.data import threefry
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported_data import ImportedData
from midstream_engine.data.levanter_cache import INDEX, import_levanter, open_cache
from midstream_engine.data.mixture import open_data
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.data import read_data
from midstream_engine.interop.levanter.importer import open_levanter
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.s3_server import S3Server
from support.imports import imported_runs
from support.paths import FIXTURES

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
DATA = FIXTURES / "levanter" / "data"
ORDERS: dict[str, Any] = json.loads((DATA / "orders.json").read_text())
POSITIONS, BATCH, FIRST, SEED, EOS = 16, 8, 3, 5, 63
BUCKET = "levanter-caches"


def ordered(root: Path, section: dict[str, Any]) -> TrainingBatches:
    from midstream_engine.config.trainer import TrainerConfig

    data = read_data({"data": section}, [str(DATA)], [], TrainerConfig(train_batch_size=BATCH), SEED)
    assert data.eos == EOS
    directory = import_levanter(str(root), data.caches, data.order, seq_len=POSITIONS, tokenizer="ids:64:63")
    opened = open_data(directory)
    assert isinstance(opened, ImportedData)
    return TrainingBatches(opened, seq_len=POSITIONS, batch_size=BATCH, seed=0, shuffle=False)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_next_updates_read_levanters_samples(name: str, tmp_path: Path) -> None:
    batches = ordered(tmp_path, ORDERS[name]["data"])
    found = []
    for update in range(FIRST, FIRST + len(ORDERS[name]["batches"])):
        batch = batches.batch(update)
        assert batch.loss_mask[:, :-1].all()
        assert not batch.loss_mask[:, -1].any()
        found.append(hashlib.sha256(batch.tokens.astype("<i4").tobytes()).hexdigest())
    assert found == ORDERS[name]["batches"]


def test_rows_of_a_batch_equal_the_complete_batch(tmp_path: Path) -> None:
    """For any split of the batch over hosts, and at any step."""
    batches = ordered(tmp_path, ORDERS["three, changing weights"]["data"])
    complete = batches.batch(30).tokens
    for rows in ([0, 3], [7], [1, 2, 4, 5, 6]):
        part = batches.samples(30, 30 * BATCH, BATCH, np.array(rows))
        np.testing.assert_array_equal(part.tokens[rows], complete[rows])


@pytest.mark.parametrize("seed", [0, 5, 2**31 - 1])
def test_threefry_equals_jax_random(seed: int) -> None:
    key, ours = jax.random.PRNGKey(seed), threefry.seeded(seed)
    np.testing.assert_array_equal(key, ours)
    np.testing.assert_array_equal(jax.random.split(key, 3), threefry.split(ours, 3))
    np.testing.assert_array_equal(jax.random.fold_in(key, 77), threefry.fold_in(ours, 77))
    assert int(jax.random.randint(key, (), 0, 2**30)) == threefry.below_power(ours, 30)
    for count in (1, 2, 5, 2048):
        np.testing.assert_array_equal(jax.random.permutation(key, count), threefry.permutation(ours, count))


@pytest.mark.drawn
def test_imported_run_continues_with_levanters_losses(tmp_path: Path) -> None:
    """End of text separates documents; cache paths are relative to the configuration."""
    assert main([str(DATA / "run"), str(tmp_path / "out")]) == 0
    expected = json.loads((DATA / "run" / "expected.json").read_text())["losses"]
    adopted = open_levanter(str(DATA / "run"))
    (digest,) = (path.name for path in (tmp_path / "out" / "data").iterdir())
    batches = TrainingBatches(
        open_data(str(tmp_path / "out" / "data" / digest)), seq_len=POSITIONS, batch_size=BATCH, seed=0, shuffle=False
    )
    tokens = [batches.batch(FIRST + number).tokens for number in range(len(expected))]
    np.testing.assert_allclose(imported_runs.continued(adopted, tokens), expected, rtol=1e-5)
    train = json.loads((tmp_path / "out" / "checkpoints" / "step-3-a000" / "train.json").read_text())
    assert train["state"]["data_digest"] == digest
    assert len(train["reference_losses"]["losses"]) == BATCH
    assert train["state"]["tokenizer"] == f"ids:64:{EOS}"
    carried = tmp_path / "out" / "data" / digest / "tokenizer" / "tokenizer.json"
    assert carried.read_bytes() == (DATA / "tokenizer" / "tokenizer.json").read_bytes()
    assert main([str(tmp_path / "out"), str(tmp_path / "back"), "--from", "midstream", "--to", "huggingface"]) == 0
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == carried.read_bytes()


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    shutil.copytree(DATA, folder)
    path = folder / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return folder / "run"


def test_end_token_is_read_from_caches_without_tokenizer(tmp_path: Path) -> None:
    source = changed(tmp_path / "x", lambda config: config["data"].update(tokenizer="some-org/name"))
    adopted = open_levanter(str(source))
    assert adopted.mapping["data"]["tokenizer"] == f"ids:64:{EOS}"
    assert [note for note in adopted.notes if "some-org/name is only a name" in note]


def test_token_id_beyond_vocabulary_is_refused_at_import(tmp_path: Path) -> None:
    from midstream_engine.config.trainer import TrainerConfig

    section = ORDERS["three, changing weights"]["data"]
    data = read_data({"data": section}, [str(DATA)], [], TrainerConfig(train_batch_size=BATCH), SEED)
    with pytest.raises(DataError, match=r"dataset \w+, sample \d+ of the cache has token id 6[0-3], but .* has 60 ids"):
        import_levanter(str(tmp_path), data.caches, data.order, seq_len=POSITIONS, tokenizer="ids:60:59")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server(BUCKET) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        close_clients()
        yield server
    close_clients()


@pytest.fixture
def s3(s3: S3Server) -> S3Server:
    s3.create(BUCKET)
    return s3


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_bucket_caches_are_read_in_place(scheme: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The samples equal those of the caches on disk; no tokens are copied."""
    server: BucketServer | S3Server = request.getfixturevalue("server" if scheme == "gs" else "s3")
    section = ORDERS["three, changing weights"]["data"]
    for path in DATA.rglob("*"):
        if path.is_file():
            server.put(BUCKET, f"all/{path.relative_to(DATA)}", path.read_bytes())
    far = {
        **section,
        "components": {
            name: {**body, "cache_dir": f"{scheme}://{BUCKET}/all/{Path(body['cache_dir']).name}"}
            for name, body in section["components"].items()
        },
    }
    batches = ordered(tmp_path, far)
    for update, digest in enumerate(ORDERS["three, changing weights"]["batches"], FIRST):
        assert hashlib.sha256(batches.batch(update).tokens.astype("<i4").tobytes()).hexdigest() == digest
    (directory,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert {path.name for path in directory.rglob("*") if path.is_file()} == {INDEX, "manifest.json"}
    server.put(BUCKET, f"all/a/train/{INDEX}", b"{}")
    with pytest.raises(DataError, match="has changed since it was imported"):
        open_data(str(directory))
    with pytest.raises(DataError, match="no token cache of Levanter's"):
        open_cache(f"{scheme}://{BUCKET}/nowhere")


def test_unsupported_data_options_are_refused_by_name(tmp_path: Path) -> None:
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "max_train_batches": lambda config: config["data"].update(max_train_batches={"a": 3}),
        "stop_strategy": lambda config: config["data"].update(stop_strategy="first_exhausted"),
        "shuffle": lambda config: config["data"].update(shuffle=7),
        "permutation_type": lambda config: config["data"].update(shuffle=True, permutation_type="sorted"),
        "block of 32": lambda config: config["data"].update(train_weights=[[0, {"a": 1.0}], [3, {"b": 1.0}]]),
        "components.a": lambda config: config["data"]["components"]["a"].update(format={"type": "chat"}),
        INDEX: lambda config: config["data"]["components"]["a"].update(cache_dir="elsewhere"),
    }
    source = DATA
    for number, (word, change) in enumerate(changes.items()):
        source = changed(tmp_path / str(number), change)
        with pytest.raises(ConversionError, match=word):
            open_levanter(str(source))
        assert open_levanter(str(source), without_data=True).data is None
    given = [str(DATA / name) for name in "bac"]
    adopted = open_levanter(str(source), caches=given)
    assert adopted.mapping["data"]["tokenizer"] == f"ids:64:{EOS}"
    with pytest.raises(ConversionError, match="3: b, a, c"):
        open_levanter(str(source), caches=given[:2])


def test_other_sequence_length_is_refused_with_and_without_data(tmp_path: Path) -> None:
    source = changed(tmp_path / "run", lambda config: config.update(train_seq_len=8))
    for without_data in (False, True):
        with pytest.raises(ConversionError, match="train_seq_len: 8 tokens of 16"):
            open_levanter(str(source), without_data=without_data)


def test_incomplete_caches_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "c", tmp_path / "c")
    path = tmp_path / "c" / "train" / INDEX
    index = json.loads(path.read_text())

    def refused(words: str, **fields: Any) -> None:
        path.write_text(json.dumps({**index, **fields}))
        with pytest.raises(DataError, match=words):
            open_cache(str(tmp_path / "c"))

    refused("is not finished", is_finished=False)
    refused("documents", total_num_rows=7)
    name = index["finished_shards"][0]
    refused("is outside of the cache", finished_shards=["../a"], shard_rows={"../a": 1})
    refused("unknown form", finished_shards=None)
    path.write_text(json.dumps(index))
    shutil.rmtree(tmp_path / "c" / "train" / name / "input_ids" / "data")
    with pytest.raises(DataError, match="cannot be opened"):
        open_cache(str(tmp_path / "c")).end_token()
