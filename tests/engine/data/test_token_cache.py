"""The token cache: identified by content, complete or absent, never built twice."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from midstream_engine.config import DataConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.prepared_data import data_root, open_cache
from midstream_engine.data.sources import list_sources
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer, load_tokenizer
from support.checkpoints.token_caches import build

TEXTS = [b"one", b"", "zwei \u20ac".encode(), b"drei" * 50]


def all_tokens(cache: TokenCache) -> list[int]:
    return cache.read(0, cache.tokens).tolist()


def test_token_cache_ends_documents_with_eos_in_fixed_objects(tmp_path: Path) -> None:
    cache = build(str(tmp_path), TEXTS, ByteTokenizer(), object_bytes=64)
    expected = [token for text in TEXTS for token in [*text, 256]]
    assert all_tokens(cache) == expected
    assert cache.read(30, 70).tolist() == expected[30:100]
    sizes = [entry["size"] for entry in cache.manifest["objects"] if entry["path"].startswith("tokens-")]
    assert len(sizes) > 3
    assert set(sizes[:-1]) == {64}
    offsets = np.fromfile(os.path.join(cache.directory, "offsets.bin"), "<i8")
    assert np.diff(offsets).tolist() == [len(text) + 1 for text in TEXTS]
    for entry in cache.manifest["objects"]:
        data = Path(cache.directory, entry["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert base64.b64decode(entry["crc32c"]) == google_crc32c.value(data).to_bytes(4, "big")


def test_token_cache_digest_follows_content(tmp_path: Path) -> None:
    first = build(str(tmp_path / "a"), TEXTS, ByteTokenizer())
    assert build(str(tmp_path / "b"), TEXTS, ByteTokenizer()).digest == first.digest
    assert build(str(tmp_path / "c"), [*TEXTS[:-1], b"vier"], ByteTokenizer()).digest != first.digest
    # The same tokens cut into other documents are another content.
    assert build(str(tmp_path / "d"), [*TEXTS, b""], ByteTokenizer()).digest != first.digest


def test_token_cache_killed_build_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nimport numpy as np\n"
        "from midstream_engine.data.token_cache import build_from_tokens\n"
        "from midstream_engine.data.tokenize.tokenizer import ByteTokenizer\n"
        "def parts():\n    yield np.zeros(1000, int), np.array([1000])\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build_from_tokens(sys.argv[1], parts(), ByteTokenizer(), object_bytes=64)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert done.returncode == -9
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".building-")
    assert os.listdir(tmp_path / left)
    cache = build(str(tmp_path), TEXTS, ByteTokenizer())
    assert os.listdir(tmp_path) == [cache.digest]


def test_token_cache_concurrent_builders_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        caches = list(pool.map(lambda _: build(str(tmp_path), TEXTS * 50, ByteTokenizer()), range(8)))
    assert len({cache.directory for cache in caches}) == 1
    assert os.listdir(tmp_path) == [caches[0].digest]
    assert all_tokens(caches[0]) == all_tokens(caches[-1])


def test_token_cache_with_missing_or_short_object_is_refused(tmp_path: Path) -> None:
    cache = build(str(tmp_path), TEXTS, ByteTokenizer())
    with open(os.path.join(cache.directory, "tokens-00000.bin"), "r+b") as file:
        file.truncate(10)
    with pytest.raises(DataError, match=r"tokens-00000\.bin: 10 bytes, in the manifest"):
        TokenCache(cache.directory)


def test_token_cache_is_not_rebuilt_at_second_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "a.txt"
    text.write_text("hello")
    root, config, tokenizer = str(tmp_path / "root"), DataConfig(tokenizer="bytes"), ByteTokenizer()
    first = open_cache(root, [str(text)], config, tokenizer)
    with monkeypatch.context() as patched:
        patched.setattr(ByteTokenizer, "encode", lambda *_: pytest.fail("tokenized again"))
        assert open_cache(root, [str(text)], config, tokenizer).digest == first.digest
    text.write_text("hello again")
    assert open_cache(root, [str(text)], config, tokenizer).digest != first.digest


def test_token_cache_of_checkpoint_overrides_current_files(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("hello")
    root, config, tokenizer = str(tmp_path / "root"), DataConfig(tokenizer="bytes"), ByteTokenizer()
    wanted = open_cache(root, [str(text)], config, tokenizer).digest
    text.unlink()
    assert open_cache(root, [str(text)], config, tokenizer, digest=wanted).digest == wanted


def test_token_cache_that_cannot_be_rebuilt_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("hello")
    config, tokenizer = DataConfig(tokenizer="bytes"), ByteTokenizer()
    wanted = open_cache(str(tmp_path / "one"), [str(text)], config, tokenizer).digest
    other = str(tmp_path / "two")
    text.write_text("other")
    with pytest.raises(DataError, match=rf"trains on tokens {wanted[:12]}.*copy"):
        open_cache(other, [str(text)], config, tokenizer, digest=wanted)
    text.write_text("hello")
    assert open_cache(other, [str(text)], config, tokenizer, digest=wanted).digest == wanted
    assert wanted in os.listdir(data_root(other))


def test_sources_read_jsonl_gzip_braces_and_globs(tmp_path: Path) -> None:
    (tmp_path / "p1.jsonl").write_text('{"text": "a"}\n\n{"text": "b\u00e4"}\n')
    with gzip.open(tmp_path / "p2.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "c"}) + "\n")
    (tmp_path / "q.txt").write_text("plain")
    found = list_sources.list_sources([str(tmp_path / "p{1,2}.jsonl*"), str(tmp_path / "*.txt")])
    texts = list(list_sources.documents(found, text_key="text", max_bytes=None))
    assert texts == [b"a", "bä".encode(), b"c", b"plain"]
    assert list(list_sources.documents(found, text_key="text", max_bytes=4)) == texts[:2]
    assert list_sources.expand_braces("x{08..10}{a,b}") == ["x08a", "x08b", "x09a", "x09b", "x10a", "x10b"]


def test_sources_bad_text_is_named_with_its_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"body": "b"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: has no text"):
        list(list_sources.documents(list_sources.list_sources([str(bad)]), text_key="text", max_bytes=None))
    with pytest.raises(DataError, match="names no file"):
        list_sources.list_sources([str(tmp_path / "*.nothing")])
    with pytest.raises(DataError, match="unknown scheme ftp"):
        list_sources.list_sources(["ftp://host/x.jsonl"])
    with pytest.raises(DataError, match="no listing for a glob"):
        list_sources.list_sources(["https://host/*.jsonl"])


def test_sources_list_standard_library_in_fixed_order() -> None:
    found = list_sources.list_sources(["stdlib:json/*.py"])
    assert [source.name for source in found] == sorted(source.name for source in found)
    assert "json/decoder.py" in [source.name for source in found]
    assert not any("site-packages" in source.path for source in list_sources.list_sources(["stdlib:*/*.py"]))


def test_tokenizer_file_is_identified_by_content(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 3}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    tokenizer = load_tokenizer(str(path), "<|endoftext|>")
    assert (tokenizer.eos, tokenizer.vocab_size, tokenizer.encode(b"a b c").tolist()) == (1, 4, [2, 3, 0])
    assert hashlib.sha256(path.read_bytes()).hexdigest() in tokenizer.id
    with pytest.raises(DataError, match="not in the vocabulary"):
        load_tokenizer(str(path), "<eot>")
    with pytest.raises(DataError, match="neither 'bytes' nor"):
        load_tokenizer("gpt2", "<|endoftext|>")


def test_tokenizer_file_neither_cuts_nor_fills_documents(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "<|endoftext|>": 1, "a": 2, "b": 7}, unk_token="<unk>")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    plain = load_tokenizer(str(path), "<|endoftext|>")
    words.enable_truncation(3)
    words.enable_padding(pad_id=1, pad_token="<|endoftext|>")
    words.save(str(path))
    tokenizer = load_tokenizer(str(path), "<|endoftext|>")
    assert [ids.tolist() for ids in tokenizer.encode_all([b"a b a b", b"a"])] == [[2, 7, 2, 7], [2]]
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokenizer.id != f"tokenizer.json:{content}:<|endoftext|>", "caches with documents cut off have this id"
    assert tokenizer.vocab_size == plain.vocab_size == 8, "ids 3 to 6 are not used"
    assert plain.id.endswith(":<|endoftext|>:all ids")


def test_run_goes_on_with_the_tokens_of_its_first_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    words = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "<|endoftext|>": 1, "b": 7}, [], dropout=0.1))
    words.enable_truncation(3)
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    recorded = f"tokenizer.json:{hashlib.sha256(path.read_bytes()).hexdigest()}:<|endoftext|>"
    tokenizer = load_tokenizer(str(path), "<|endoftext|>", recorded)
    assert (tokenizer.id, tokenizer.vocab_size) == (recorded, 3)
    assert tokenizer.encode(b"abababab").tolist() == [0, 7, 0]
    with pytest.raises(DataError, match="has dropout"):
        load_tokenizer(str(path), "<|endoftext|>", recorded.replace("<|endoftext|>", "a"))


def test_tokenizer_file_with_dropout_is_refused(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    random = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "<|endoftext|>": 1}, [], dropout=0.1))
    random.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=r"tokenizer\.json has dropout"):
        load_tokenizer(str(tmp_path), "<|endoftext|>")
