"""Token ids beyond the vocabulary: refused when a cache is built, opened or read, before the loss is NaN."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from midstream_core import records
from midstream_engine.config import DataConfig
from midstream_engine.data.batches import TrainingBatches, evaluation_batches
from midstream_engine.data.errors import DataError
from midstream_engine.data.prepared_data import data_root, open_cache
from midstream_engine.data.token_cache import TokenCache, build_from_tokens
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer, load_tokenizer
from support.checkpoints.token_caches import build


def with_gap(folder: Path) -> str:
    """Write a tokenizer with three entries, the last of which has id 65538: as uint16 that is 2, another entry's."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    model = tokenizers.Tokenizer(tokenizers.models.BPE({"<|endoftext|>": 0, "a": 1, "b": 65538}, []))
    model.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


@pytest.mark.parametrize("processes", [0, 1])
def test_id_beyond_vocabulary_stops_tokenizing_with_its_document(tmp_path: Path, processes: int) -> None:
    path = with_gap(tmp_path)
    (tmp_path / "0.txt").write_text("aaa")
    (tmp_path / "1.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a", "aaba", "b")))
    config = DataConfig(tokenizer=path, num_tokenize_workers=processes)
    urls = [str(tmp_path / "0.txt"), str(tmp_path / "1.jsonl")]
    # Of a run from before gaps were read; its embedding has a row for each entry.
    plain = f"tokenizer.json:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}:<|endoftext|>"
    with pytest.raises(DataError, match=r"1\.jsonl: document 1 has token id 65538, but the vocabulary has 3 ids"):
        open_cache(str(tmp_path / "root"), urls, config, load_tokenizer(path, "<|endoftext|>", plain))
    complete = open_cache(str(tmp_path / "root"), urls, config, load_tokenizer(path, "<|endoftext|>"))
    assert (complete.vocab_size, int(complete.read(0, complete.tokens).max())) == (65539, 65538), "of a new run"


def test_id_beyond_vocabulary_is_not_written(tmp_path: Path) -> None:
    parts = [(np.array([5, 256]), np.array([2])), (np.array([7, 8, 256, 9, 300, 256]), np.array([3, 3]))]
    with pytest.raises(DataError, match="document 2 has token id 300, but the vocabulary has 257 ids"):
        build_from_tokens(str(tmp_path), parts, ByteTokenizer())
    assert os.listdir(tmp_path) == []


def with_vocabulary(cache: TokenCache, size: int) -> TokenCache:
    """Return a copy of ``cache`` whose manifest has another vocabulary."""
    manifest = {**cache.manifest, "vocab_size": size}
    del manifest["digest"]
    manifest["digest"] = hashlib.sha256(records.canonical_json(manifest)).hexdigest()
    directory = os.path.join(os.path.dirname(cache.directory), manifest["digest"])
    os.rename(cache.directory, directory)
    records.write_json(os.path.join(directory, records.MANIFEST), manifest)
    return TokenCache(directory)


def test_cache_without_record_of_a_check_is_checked_at_opening(tmp_path: Path) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("!!", "!~")))
    root = str(tmp_path / "root")
    built = open_cache(root, [str(text)], DataConfig(tokenizer="bytes"), ByteTokenizer())
    (index,) = Path(data_root(root), ".requests").iterdir()
    records.write_json(str(index), {"digest": built.digest})  # as before ids were checked
    assert open_cache(root, [str(text)], DataConfig(tokenizer="bytes"), ByteTokenizer()).digest == built.digest
    assert records.read_json(str(index)) == {"digest": built.digest, "ids_checked": True}
    records.write_json(str(index), {"digest": with_vocabulary(built, 100).digest})
    with pytest.raises(DataError, match="document 0 has token id 256, but the vocabulary has 100 ids"):
        open_cache(root, [str(text)], DataConfig(tokenizer="bytes"), ByteTokenizer())


def test_batch_with_id_beyond_vocabulary_names_its_sample(tmp_path: Path) -> None:
    cache = with_vocabulary(build(str(tmp_path), [b"!" * 63 + b"~" + b"!" * 30], ByteTokenizer()), 100)
    batches = TrainingBatches(cache, seq_len=8, batch_size=4, seed=0, shuffle=False)
    assert batches.batch(0).size == 4
    with pytest.raises(DataError, match="sample 7 of the run, example 7 of the dataset, has token id 126"):
        batches.batch(1)
    assert batches.samples(1, 4, 4, np.array([0, 1, 2])).size == 4  # of another process: without that sample
    with pytest.raises(DataError, match="example 7 of the validation set has token id 126"):
        list(evaluation_batches(cache, seq_len=8, batch_size=4, limit=None))
