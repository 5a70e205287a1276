"""Mixtures and packing: promised shares and documents, seekable, identified by one digest."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream_core import records
from midstream_engine.config import ConfigError, DataConfig, from_mapping
from midstream_engine.config.data import SourceConfig
from midstream_engine.data.__main__ import main as command
from midstream_engine.data.batches import TrainingBatches, evaluation_batches
from midstream_engine.data.errors import DataError
from midstream_engine.data.example_order import Interleave
from midstream_engine.data.mixture import Mixture
from midstream_engine.data.packing import pack
from midstream_engine.data.prepared_data import data_root, open_training, open_validation
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
from support.commit_seed import commit_seed

SEQ = 16


def corpus(folder: Path, letter: str, documents: int, validation: int = 0) -> SourceConfig:
    """Documents of 0 to 40 times ``letter``, so that a token shows its source."""
    rng = np.random.default_rng(ord(letter))
    sizes = rng.integers(0, 41, documents + validation)
    lines = [json.dumps({"text": letter * int(size)}) + "\n" for size in sizes]
    (folder / f"{letter}.jsonl").write_text("".join(lines[:documents]))
    (folder / f"{letter}-val.jsonl").write_text("".join(lines[documents:]))
    urls = [str(folder / f"{letter}-val.jsonl")] if validation else []
    return SourceConfig(train_urls=[str(folder / f"{letter}.jsonl")], validation_urls=urls)


@pytest.fixture
def mixed(tmp_path: Path) -> DataConfig:
    datasets = {"web": corpus(tmp_path, "w", 300, 30), "arxiv": corpus(tmp_path, "a", 60, 10)}
    datasets["code"] = corpus(tmp_path, "c", 90)
    return DataConfig(
        tokenizer="bytes", configs=datasets, train_weights={"web": 5, "arxiv": 2.5, "code": 0.5}, mixture_block_size=16
    )


def opened(root: Path, config: DataConfig, seq_len: int = SEQ, wanted: str | None = None) -> TokenCache | Mixture:
    data = open_training(str(root), config, ByteTokenizer(), seq_len=seq_len, expected_digest=wanted)
    assert isinstance(data, TokenCache | Mixture)
    return data


def batches(data: TokenCache | Mixture, size: int = 4, seed: int = 0) -> TrainingBatches:
    return TrainingBatches(data, seq_len=SEQ, batch_size=size, seed=seed)


# ---------------------------------------------------------------------------------------------------------- mixture


def test_mixture_block_has_the_promised_shares(mixed: DataConfig, tmp_path: Path) -> None:
    assert mixed.block_counts() == {"arxiv": 5, "code": 1, "web": 10}
    order = batches(opened(tmp_path / "root", mixed))
    drawn = []
    for block in range(30):
        dataset, _ = order.locate(np.arange(block * 16, block * 16 + 16))
        assert np.bincount(dataset).tolist() == [5, 1, 10]
        drawn.append(tuple(dataset.tolist()))
    assert len(set(drawn)) > 20  # each in an order of its own


def test_mixture_reads_each_body_fully_before_repeating(mixed: DataConfig, tmp_path: Path) -> None:
    order = batches(opened(tmp_path / "root", mixed))
    dataset, example = order.locate(np.arange(16 * 150))
    for number in range(3):
        own = example[dataset == number]
        count = order._orders[number].count
        assert len(own) > count, "the test has to see more than one epoch of each"
        for start in range(0, len(own) - count + 1, count):
            assert sorted(own[start : start + count].tolist()) == list(range(count))


def test_mixture_draws_text_of_its_dataset(mixed: DataConfig, tmp_path: Path) -> None:
    order = batches(opened(tmp_path / "root", mixed))
    letters = [{ord("a"), 256}, {ord("c"), 256}, {ord("w"), 256}]
    for index in range(20):
        batch = order.batch(index)
        dataset, _ = order.locate(np.arange(index * 4, index * 4 + 4))
        for row, number in enumerate(dataset):
            assert set(batch.tokens[row].tolist()) <= letters[number]


def test_mixture_batch_is_independent_of_earlier_ones(mixed: DataConfig, tmp_path: Path) -> None:
    data = opened(tmp_path / "root", mixed)
    walked = batches(data)
    digests = [walked.batch(index).digest for index in range(150)]
    for index in (149, 0, 77, 31):
        assert batches(data).batch(index).digest == digests[index]
    far = batches(data).batch(10**12)
    assert far.digest == batches(data).batch(10**12).digest
    assert batches(data, seed=1).batch(0).digest != digests[0]
    # Other batch sizes walk through the same samples.
    larger = batches(data, size=8)
    assert np.array_equal(larger.batch(9).tokens, np.concatenate([walked.batch(18).tokens, walked.batch(19).tokens]))
    assert np.array_equal(walked.samples(5, 72, 8).tokens, larger.batch(9).tokens)


def test_mixture_order_is_pinned() -> None:
    """Another order would silently change each resumed run, so this may never change."""
    dataset, number = Interleave([1, 2, 5], "midstream")(np.arange(16))
    assert list(zip(dataset.tolist(), number.tolist(), strict=True)) == [
        (1, 0), (2, 0), (0, 0), (2, 1), (2, 2), (2, 3), (2, 4), (1, 1),
        (2, 5), (2, 6), (1, 2), (2, 7), (2, 8), (1, 3), (2, 9), (0, 1),
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(shares=st.lists(st.integers(1, 40), min_size=1, max_size=6), first=st.integers(0, 10**15))
def test_mixture_numbers_samples_of_a_body_without_gaps(shares: list[int], first: int) -> None:
    interleave = Interleave(shares, "key")
    block = sum(shares)
    start = first // block * block
    dataset, number = interleave(np.arange(start, start + 2 * block))
    for one, share in enumerate(shares):
        expected = start // block * share + np.arange(2 * share)
        assert sorted(number[dataset == one].tolist()) == expected.tolist()


@settings(max_examples=100, deadline=None)
@given(weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=8))
def test_mixture_shares_are_nearest_integers(weights: list[float]) -> None:
    names = [f"n{number}" for number in range(len(weights))]
    datasets = {name: SourceConfig(train_urls=["x"]) for name in names}
    config = DataConfig(
        tokenizer="bytes",
        configs=datasets,
        train_weights=dict(zip(names, weights, strict=True)),
        mixture_block_size=10_000,
    )
    counts = config.block_counts()
    assert sum(counts.values()) == 10_000
    for name, weight in config.train_weights.items():
        assert abs(counts[name] - weight / sum(weights) * 10_000) < 1


def test_mixture_directory_is_complete_and_described(mixed: DataConfig, tmp_path: Path) -> None:
    data = opened(tmp_path / "root", mixed)
    assert isinstance(data, Mixture)
    with open(os.path.join(data.directory, records.MANIFEST)) as file:
        entries = json.load(file)["objects"]
    other = tmp_path / "other"
    for entry in entries:  # as a migration copies it
        assert records.safe_relative(entry["path"])
        source = Path(data.directory, entry["path"])
        assert source.stat().st_size == entry["size"]
        place = Path(data_root(str(other)), data.digest, entry["path"])
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
    found = sum(len(files) for _, _, files in os.walk(data.directory))
    assert found == len(entries) + 1
    shutil.copyfile(Path(data.directory, "manifest.json"), Path(data_root(str(other)), data.digest, "manifest.json"))
    for url in tmp_path.glob("*.jsonl"):
        url.unlink()
    copied = opened(other, mixed, wanted=data.digest)
    assert batches(copied).batch(3).digest == batches(data).batch(3).digest


def test_mixture_refuses_start_that_changes_order(mixed: DataConfig, tmp_path: Path) -> None:
    root = tmp_path / "root"
    wanted = opened(root, mixed).digest
    again = dataclasses.replace(mixed, train_weights={"web": 10, "arxiv": 5, "code": 1})  # the same shares
    assert opened(root, again, wanted=wanted).digest == wanted
    for changes, said in [
        ({"train_weights": {"web": 1, "arxiv": 1, "code": 1}}, r"data\.train_weights is arxiv 6, code 5, web 5"),
        ({"mixture_block_size": 32}, r"web 20 of every 32 sequences, but the run trains on arxiv 5, code 1, web 10"),
        ({"train_weights": {"web": 1, "arxiv": 1}}, "data order would change"),
        ({"pack": True}, r"data\.pack is documents packed into 16 tokens, but .* not packed"),
    ]:
        with pytest.raises(DataError, match=said):
            opened(root, dataclasses.replace(mixed, **changes), wanted=wanted)
    plain = dataclasses.replace(mixed.configs["web"])
    with pytest.raises(DataError, match=r"is a single dataset, but the run trains on arxiv 5"):
        opened(root, DataConfig(tokenizer="bytes", train_urls=plain.train_urls), wanted=wanted)
    single = opened(root, DataConfig(tokenizer="bytes", train_urls=plain.train_urls)).digest
    with pytest.raises(DataError, match="but the run trains on a single dataset"):
        opened(root, mixed, wanted=single)


def test_mixture_refuses_changed_text(mixed: DataConfig, tmp_path: Path) -> None:
    wanted = opened(tmp_path / "one", mixed).digest
    with open(mixed.configs["code"].train_urls[0], "a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(DataError, match=rf"trains on tokens {wanted[:12]}.*copy"):
        opened(tmp_path / "two", mixed, wanted=wanted)


def test_mixture_refuses_missing_object(mixed: DataConfig, tmp_path: Path) -> None:
    data = opened(tmp_path / "root", mixed)
    assert isinstance(data, Mixture)
    Path(data.datasets[1].cache.directory, "offsets.bin").unlink()
    with pytest.raises(DataError, match=r"offsets\.bin: None bytes, in the manifest"):
        opened(tmp_path / "root", mixed, wanted=data.digest)


def test_mixture_of_one_weighted_dataset_is_that_dataset(mixed: DataConfig, tmp_path: Path) -> None:
    alone = dataclasses.replace(mixed, train_weights={"web": 1, "arxiv": 0})
    plain = opened(tmp_path / "root", DataConfig(tokenizer="bytes", train_urls=mixed.configs["web"].train_urls))
    assert opened(tmp_path / "root", alone).digest == plain.digest


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"train_weights": {"web": 1, "arxv": 1}}, "data.train_weights.arxv: data.configs has no such name; nearest"),
        ({"train_weights": {"web": -1}}, "data.train_weights.web: -1.0 is no share"),
        ({"train_weights": {"web": 0}}, "no dataset has a weight above 0"),
        ({"train_weights": {"web": 1, "arxiv": 1e-9}}, "gives no sequence in a block of 2048"),
        ({"train_urls": ["x"]}, "all text belongs there"),
        ({"mixture_block_size": 0}, "data.mixture_block_size: 0 is not positive"),
        ({"configs": {"web": {"train_url": ["x"]}}}, "unknown key data.configs.web.train_url; nearest"),
        ({"num_tokenize_workers": -1}, "data.num_tokenize_workers: -1 is negative"),
    ],
)
def test_mixture_config_mistake_is_one_line(data: dict[str, object], said: str) -> None:
    datasets = {"web": {"train_urls": "w.jsonl"}, "arxiv": {"train_urls": ["b.jsonl"], "text_key": "body"}}
    good = from_mapping({"data": {"configs": datasets, "train_weights": {"web": 0.75, "arxiv": 0.25}}}).config.data
    assert good.configs["web"].train_urls == ["w.jsonl"]
    assert good.configs["arxiv"].text_key == "body"
    assert good.block_counts() == {"arxiv": 512, "web": 1536}
    assert from_mapping({"data": from_mapping({"data": {"configs": datasets}}).config.resolved()["data"]}).notes == []
    with pytest.raises(ConfigError) as caught:
        from_mapping({"data": {"configs": datasets, **data}})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mixture_dataset_without_a_weight_is_reported() -> None:
    datasets: dict[str, object] = {
        "web": {"train_urls": ["w"]},
        "code": {"id": "c"},
        "novels": {"train_urls": ["b"]},
        "held": {"validation_urls": "h"},
    }
    loaded = from_mapping({"data": {"configs": datasets, "train_weights": {"web": 1, "novels": 0}}})
    assert [line.partition(" (")[0] for line in loaded.warnings] == [
        "data.train_weights: has no weight for code: its training text is not used"
    ]
    del datasets["held"]
    assert from_mapping({"data": {"configs": datasets}}).warnings == [], "all have equal shares"


def test_mixture_datasets_have_validation_sets(mixed: DataConfig, tmp_path: Path) -> None:
    validation = open_validation(str(tmp_path / "root"), mixed, ByteTokenizer())
    assert validation is not None
    assert list(validation.sets) == ["arxiv", "web"]
    seen = Counter()
    for batch in evaluation_batches(validation, seq_len=SEQ, batch_size=4, limit=None):
        letter = ord(batch.source[0])
        real = batch.tokens[batch.loss_mask[:, 0] == 1]
        assert set(np.unique(real).tolist()) <= {letter, 256}
        seen[batch.source] += len(real)
    assert seen == {name: cache.tokens // SEQ for name, cache in validation.sets.items()}
    limited = [b.source for b in evaluation_batches(validation, seq_len=SEQ, batch_size=4, limit=2)]
    assert limited == ["arxiv"] * 2 + ["web"] * 2
    assert (
        open_validation(str(tmp_path / "root"), DataConfig(tokenizer="bytes", train_urls=["x"]), ByteTokenizer())
        is None
    )


# ---------------------------------------------------------------------------------------------------------- packing


def test_packing_keeps_each_document_once_and_undivided() -> None:
    seed = commit_seed()
    rng = np.random.default_rng(seed)
    for seq_len in (2, 7, 64, 200):
        lengths = np.concatenate([rng.integers(1, 3 * seq_len + 2, 300), [1, 2, seq_len, seq_len + 1]])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        packs = pack(offsets, seq_len)
        assert packs.rows[0] == 0
        assert packs.rows[-1] == len(packs.starts)
        filled = np.add.reduceat(packs.lengths, packs.rows[:-1])
        assert (filled <= seq_len).all()
        assert (filled > 0).all()
        covered = sorted(zip(packs.starts.tolist(), packs.lengths.tolist(), strict=True))
        expected = [
            (start, min(seq_len, end - start))
            for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            for start in range(first, end, seq_len)
            if end - start > 1
        ]
        assert covered == expected
        # Best fit leaves at most one example less than half full.
        assert int((filled * 2 <= seq_len).sum()) <= 1


def packed(tmp_path: Path, letter: str = "a", documents: int = 80) -> tuple[TokenCache | Mixture, list[bytes]]:
    dataset = corpus(tmp_path, letter, documents)
    config = DataConfig(tokenizer="bytes", train_urls=dataset.train_urls, pack=True)
    texts = [json.loads(line)["text"].encode() for line in Path(dataset.train_urls[0]).read_text().splitlines()]
    return opened(tmp_path / "root", config), texts


def test_packed_batch_counts_within_documents_only(tmp_path: Path) -> None:
    data, texts = packed(tmp_path)
    order = batches(data, size=1)
    pieces: Counter[tuple[int, ...]] = Counter()
    for sample in range(order.sequences):
        batch = order.batch(sample)
        tokens, mask = batch.tokens[0], batch.loss_mask[0]
        assert mask[-1] == 0
        position = 0
        while position < SEQ and (length := run_of_ones(mask, position)):
            piece = tokens[position : position + length + 1]  # the last token of a document is only a target
            assert 256 not in piece[:-1]
            pieces[tuple(piece.tolist())] += 1
            position += length + 1
        assert (tokens[position:] == 256).all()
    expected: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        document = [*text, 256]
        for start in range(0, len(document), SEQ):
            if len(document) - start > 1:
                expected[tuple(document[start : start + SEQ])] += 1
    assert pieces == expected


def run_of_ones(mask: np.ndarray, start: int) -> int:
    zeros = np.flatnonzero(mask[start:] == 0)
    return int(zeros[0])


def test_packed_model_segments_are_documents(tmp_path: Path) -> None:
    import haliax as hax

    from midstream_engine.models.lm import BATCH, POSITION, segments_of

    data, _ = packed(tmp_path)
    batch = batches(data, size=8).batch(0)
    segments = segments_of(hax.named(batch.tokens, (BATCH, POSITION)), 256).array
    for row in range(8):
        # Within a segment every position but the last counts; at its end the next one begins.
        for position in range(SEQ - 1):
            joined = bool(segments[row, position] == segments[row, position + 1])
            assert joined == bool(batch.loss_mask[row, position])


def test_packing_is_part_of_digest_and_bound_to_length(tmp_path: Path) -> None:
    data, _ = packed(tmp_path)
    plain = DataConfig(tokenizer="bytes", train_urls=[str(tmp_path / "a.jsonl")])
    assert opened(tmp_path / "root", plain).digest != data.digest
    with pytest.raises(DataError, match=r"packed into 32 tokens, but the run trains on documents packed into 16"):
        opened(tmp_path / "root", dataclasses.replace(plain, pack=True), seq_len=32, wanted=data.digest)
    with pytest.raises(DataError, match=r"model\.seq_len is 32, but .* is packed for 16"):
        TrainingBatches(data, seq_len=32, batch_size=4, seed=0)
    with pytest.raises(DataError, match="text that is not packed, but the run trains on documents packed into 16"):
        opened(tmp_path / "root", plain, wanted=data.digest)
    again, _ = packed(tmp_path)
    assert again.digest == data.digest


def test_packed_examples_may_have_the_last_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = corpus(tmp_path, "a", 80).train_urls
    written = {"data": {"tokenizer": "bytes", "train_urls": urls, "pack": True, "next_token": True}}
    (tmp_path / "run.yaml").write_text(json.dumps(written))
    flags = ["--config_path", str(tmp_path / "run.yaml"), "--model.seq_len", str(SEQ), "--trainer.root"]
    assert command([*flags, str(tmp_path / "root")]) == 0
    line = json.loads(capsys.readouterr().out)
    config = DataConfig(tokenizer="bytes", train_urls=urls, pack=True, next_token=True)
    data = opened(tmp_path / "root", config, seq_len=SEQ + 1)
    assert line["digest"] == data.digest, "a run of this configuration packs so"
    order = TrainingBatches(data, seq_len=SEQ + 1, batch_size=8, seed=0)
    assert order.batch(0).tokens.shape == (8, SEQ + 1)
    assert order.batch(0).loss_mask[:, :SEQ].all(1).any(), "of a full example every position has a target"


def test_mixture_may_be_packed(mixed: DataConfig, tmp_path: Path) -> None:
    data = opened(tmp_path / "root", dataclasses.replace(mixed, pack=True))
    order = batches(data)
    dataset, _ = order.locate(np.arange(16))
    assert np.bincount(dataset).tolist() == [5, 1, 10]
    assert order.batch(0).digest == batches(data).batch(0).digest
    assert (order.batch(0).loss_mask.sum(1) < SEQ).all()


def test_data_command_builds_and_prints_what_training_reads(
    mixed: DataConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = {name: dataclasses.asdict(dataset) for name, dataset in mixed.configs.items()}
    data = {"configs": datasets, "train_weights": mixed.train_weights, "mixture_block_size": 16}
    written = {"data": {"tokenizer": "bytes", **data}}
    (tmp_path / "run.yaml").write_text(json.dumps(written))
    root = tmp_path / "root"
    flags = ["--config_path", str(tmp_path / "run.yaml"), "--model.seq_len", str(SEQ), "--trainer.root", str(root)]
    assert command(flags) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["set"] for line in lines] == ["train", "validation/arxiv", "validation/web"]
    assert lines[0]["digest"] == opened(root, mixed).digest
    assert lines[0]["datasets"] == batches(opened(root, mixed)).sizes()
    assert lines[0]["sequences"] == sum(lines[0]["datasets"].values())
    assert command([*flags, "--data.mixture_block_size", "2"]) == 2
    assert command([*flags, "--data.configs.web.train_urls", "nowhere.jsonl"]) == 1
    assert "midstream: data: 'nowhere.jsonl' names no file" in capsys.readouterr().err
