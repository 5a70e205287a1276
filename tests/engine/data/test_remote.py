"""Token caches in a bucket and behind http, and their block cache."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_core.object_store.open_bucket import close_clients
from midstream_core.records import ObjectEntry
from midstream_engine.config import ConfigError, DataConfig
from midstream_engine.data import prepared_data as prepare
from midstream_engine.data import remote_cache
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.block_cache import BlockCache
from midstream_engine.data.errors import DataError
from midstream_engine.data.prepared_data import open_cache, open_training, open_validation
from midstream_engine.data.sources import bucket as buckets
from midstream_engine.data.sources import http
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
from simulators.object_stores.bucket import BucketServer, bucket_server
from simulators.object_stores.file_server import FileServer
from simulators.object_stores.s3_server import s3_server
from simulators.planted_faults import Fault
from support.checkpoints.token_caches import build

# The package google-cloud-storage drops connections whose answer was a refusal, without closing them.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:Exception ignored in. <socket\.socket:pytest.PytestUnraisableExceptionWarning"
)
OBJECT = 1000  # bytes
URL = "gs://caches/tokens"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    pytest.importorskip("google.cloud.storage", reason="needs google-cloud-storage: make setup")
    with bucket_server("caches") as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        close_clients()
        yield server
        close_clients()
        gc.collect()


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """10 kB of text, in objects of 1000 bytes."""
    rng = np.random.default_rng(5)
    text = "".join(map(chr, rng.integers(97, 123, 10_000)))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "v.txt").write_text(text[:2000][::-1])
    real = prepare.token_cache.build_from_tokens
    monkeypatch.setattr(
        prepare.token_cache, "build_from_tokens", lambda place, made, tokenizer, _: real(place, made, tokenizer, OBJECT)
    )
    return tmp_path


def config(corpus: Path, **changes: Any) -> DataConfig:
    given = {"train_urls": [str(corpus / "a.txt")], "cache_dir": URL, **changes}
    return DataConfig(**{"tokenizer": "bytes", **given})


def opened(root: Path, settings: DataConfig) -> TokenCache:
    return open_cache(str(root), settings.train_urls, settings, ByteTokenizer())


def tokens(cache: TokenCache) -> list[int]:
    return cache.read(0, cache.tokens).tolist()


def gets(server: BucketServer, part: str) -> int:
    """Requests for the content of objects."""
    return sum(method == "GET" and part in path and "alt=media" in path for method, path in server.requests)


def test_bucket_cache_is_stored_and_read_by_others(bucket: BucketServer, corpus: Path) -> None:
    here = opened(corpus / "one", config(corpus))
    assert here.local
    there = opened(corpus / "two", config(corpus))
    assert not there.local
    assert there.directory == f"{URL}/{here.digest}"
    assert tokens(there) == tokens(here)
    assert there.offsets().tolist() == here.offsets().tolist()
    before = gets(bucket, "tokens-")
    assert before == len(here.manifest["objects"]) - 1
    again = opened(corpus / "two", config(corpus))
    assert tokens(again) == tokens(here)
    assert gets(bucket, "tokens-") == before  # from the block cache


def test_s3_cache_is_stored_once_and_read_by_others(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts write it at once, in a bucket whose name contains the word; a third has no text."""
    with s3_server("my-bucket") as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        close_clients()
        settings = config(corpus, cache_dir="s3://my-bucket/bucket/tokens")
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda name: opened(corpus / name, settings), ("one", "two"))
        assert first.digest == second.digest
        prefix = f"bucket/tokens/{first.digest}/"
        stored = {name.removeprefix(prefix): blob.data for name, blob in server.blobs("my-bucket", prefix).items()}
        written = Path(first.directory if first.local else second.directory)
        assert stored == {str(path.relative_to(written)): path.read_bytes() for path in written.rglob("*")
                          if path.is_file()}  # fmt: skip
        (corpus / "a.txt").unlink()
        server.faults += [Fault("GET", "tokens-", 503), Fault("GET", "tokens-", "truncate")]
        there = opened(corpus / "three", settings)
        assert (there.local, there.directory) == (False, f"s3://my-bucket/{prefix[:-1]}")
        assert tokens(there) == tokens(first)
        assert [fault for fault in server.faults if fault.times] == []
        batches = [TrainingBatches(each, seq_len=64, batch_size=16, seed=1) for each in (first, there)]
        assert batches[0].batch(7).digest == batches[1].batch(7).digest
        with pytest.raises(DataError, match="there is no bucket nobody"):
            opened(corpus / "four", config(corpus, cache_dir="s3://nobody/tokens"))
        close_clients()


@pytest.mark.usefixtures("bucket")
def test_bucket_batches_equal_directory_batches(corpus: Path) -> None:
    here = TrainingBatches(opened(corpus / "one", config(corpus)), seq_len=64, batch_size=16, seed=1)
    there = TrainingBatches(opened(corpus / "two", config(corpus)), seq_len=64, batch_size=16, seed=1)
    for index in (0, 7, 100):
        assert there.batch(index).digest == here.batch(index).digest


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("pack", [False, True])
def test_bucket_mixture_has_the_same_digest_and_order(corpus: Path, pack: bool) -> None:
    datasets = {"a": {"train_urls": [str(corpus / "a.txt")]}, "v": {"train_urls": [str(corpus / "v.txt")]}}
    from midstream_engine.config import from_mapping

    data = {"tokenizer": "bytes", "configs": datasets, "mixture_block_size": 8, "pack": pack, "cache_dir": URL}
    settings = from_mapping({"data": data}).config.data
    here = open_training(str(corpus / "one"), settings, ByteTokenizer(), seq_len=64)
    there = open_training(str(corpus / "two"), settings, ByteTokenizer(), seq_len=64, expected_digest=here.digest)
    assert (here.local, there.local) == (True, False)
    assert there.digest == here.digest
    batches = [TrainingBatches(data, seq_len=64, batch_size=8, seed=1) for data in (here, there)]
    assert batches[0].batch(3).digest == batches[1].batch(3).digest


@pytest.mark.usefixtures("bucket")
def test_bucket_cache_serves_host_without_text_by_url(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = opened(corpus / "one", config(corpus))
    (corpus / "a.txt").unlink()
    with caplog.at_level("INFO"):
        there = opened(corpus / "two", config(corpus))
    assert there.digest == here.digest
    assert "names no file; using the cache of the same URLs" in caplog.text
    with pytest.raises(DataError, match="names no file"):  # other urls were never tokenized
        opened(corpus / "two", config(corpus, train_urls=[str(corpus / "b.txt")]))


@pytest.mark.usefixtures("bucket")
def test_bucket_cache_is_found_by_digest_of_checkpoint(corpus: Path) -> None:
    wanted = opened(corpus / "one", config(corpus)).digest
    (corpus / "a.txt").write_text("other text")
    settings = config(corpus)
    found = open_cache(str(corpus / "two"), settings.train_urls, settings, ByteTokenizer(), digest=wanted)
    assert (found.digest, found.local) == (wanted, False)


@pytest.mark.parametrize("cut", ["tokens-00000.bin", "tokens-00003.bin", "offsets.bin"])
def test_bucket_partial_upload_is_no_cache_and_is_completed(
    bucket: BucketServer, corpus: Path, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(url: str, path: str, crc32c: str) -> None:
        if url.endswith(cut):
            raise DataError("the connection was lost")
        buckets.create(url, path, crc32c)

    with monkeypatch.context() as patched:
        patched.setattr(remote_cache.BucketServer, "create", staticmethod(create))
        with pytest.raises(DataError, match="the connection was lost"):
            opened(corpus / "one", config(corpus))
    assert any("tokens-" in name for name in names(bucket))
    assert not any(name.endswith("manifest.json") for name in names(bucket))
    other = opened(corpus / "two", config(corpus))  # nothing half there is taken for a cache
    assert other.local
    assert f"tokens/{other.digest}/manifest.json" in names(bucket)
    assert tokens(opened(corpus / "three", config(corpus))) == tokens(other)
    assert opened(corpus / "one", config(corpus)).digest == other.digest


@pytest.mark.parametrize("code", [401, 403])
def test_bucket_cache_refusal_is_one_line_with_hint(bucket: BucketServer, corpus: Path, code: int) -> None:
    for method in ("POST", "GET"):
        bucket.faults[:] = [Fault(method, "/o", code, times=1000)]
        with pytest.raises(DataError, match=r"not public, and there are no credentials here.*gcloud auth") as caught:
            opened(corpus / "one", config(corpus))
        assert "\n" not in str(caught.value)


def names(server: BucketServer) -> list[str]:
    return sorted(server.buckets["caches"])


@pytest.mark.usefixtures("bucket")
def test_bucket_hosts_storing_the_same_cache_agree(corpus: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda host: opened(corpus / host, config(corpus)), ["one", "two"]))
    assert found[0].digest == found[1].digest
    assert tokens(opened(corpus / "three", config(corpus))) == tokens(found[0])


def test_bucket_foreign_object_is_refused(bucket: BucketServer, corpus: Path) -> None:
    digest = build(str(corpus / "elsewhere"), [(corpus / "a.txt").read_bytes()], ByteTokenizer(), OBJECT).digest
    buckets.put(f"{URL}/{digest}/tokens-00001.bin", b"something else")
    with pytest.raises(DataError, match=r"tokens-00001\.bin: another object has this name \(hint: remove it"):
        opened(corpus / "one", config(corpus))
    assert f"tokens/{digest}/manifest.json" not in names(bucket)


@pytest.mark.usefixtures("bucket")
def test_bucket_damaged_object_is_never_used(corpus: Path) -> None:
    digest = opened(corpus / "one", config(corpus)).digest
    name = f"{URL}/{digest}/tokens-00002.bin"
    buckets.put(name, buckets.get(name)[:-1] + b"x")
    there = opened(corpus / "two", config(corpus))
    with pytest.raises(DataError, match=r"tokens-00002\.bin: 1000 bytes with SHA-256 .* this token cache is damaged"):
        tokens(there)
    assert not [left for left in os.listdir(corpus / "two" / "data" / ".blocks") if left.startswith(".partial")]
    buckets.put(f"{URL}/{digest}/manifest.json", buckets.get(f"{URL}/{digest}/manifest.json").replace(b"0", b"1"))
    with pytest.raises(DataError, match="is not the manifest of the cache of that name"):
        opened(corpus / "three", config(corpus))


@pytest.mark.usefixtures("bucket")
def test_bucket_missing_or_unnamed_is_one_line(corpus: Path) -> None:
    with pytest.raises(DataError, match="there is no bucket nobody") as caught:
        opened(corpus / "one", config(corpus, cache_dir="gs://nobody/tokens"))
    assert "\n" not in str(caught.value)
    for wrong in ("gs://", "gs:/caches", "s3:/caches", "s4://caches"):
        with pytest.raises(ConfigError, match=r"data\.cache_dir.*write gs://BUCKET/PREFIX"):
            DataConfig(cache_dir=wrong)


# -------------------------------------------------------------------------------------------------------------- http


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(http, "FIRST_DELAY", 0.001)
    with FileServer({}) as server:
        yield server


def served(server: FileServer, root: Path) -> None:
    data = root / "data"
    server.files = {f"tokens/{path.relative_to(data)}": path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_http_data_directory_is_a_read_only_cache(
    site: FileServer, corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = opened(corpus / "one", config(corpus, cache_dir=None))
    served(site, corpus / "one")
    settings = config(corpus, cache_dir=f"{site.url}/tokens/")
    there = opened(corpus / "two", settings)
    assert (there.local, there.digest) == (False, here.digest)
    site.breaks = [300]  # a connection that breaks is taken up where it was
    assert tokens(there) == tokens(here)
    (corpus / "a.txt").write_text("text that nobody has tokenized")
    with caplog.at_level("INFO"):
        assert opened(corpus / "two", settings).local
    assert "is stored on this host alone: " in caplog.text


# ------------------------------------------------------------------------------------------------------- block cache


def entry_of(data: bytes) -> ObjectEntry:
    return ObjectEntry("x", len(data), hashlib.sha256(data).hexdigest(), "")


def source_of(data: bytes, calls: list[int]) -> Callable[[], Any]:
    import contextlib
    import io

    def source() -> Any:
        calls.append(len(data))
        return contextlib.closing(io.BytesIO(data))

    return source


def test_block_cache_respects_limit_and_evicts_oldest_use(tmp_path: Path) -> None:
    blocks, calls = BlockCache(str(tmp_path), 3000), list[int]()
    contents = [bytes([number]) * 1000 for number in range(5)]
    for number, data in enumerate(contents):
        assert bytes(blocks.get(entry_of(data), source_of(data, calls), "x")) == data
        os.utime(tmp_path / entry_of(data).sha256, (number, number))
    kept = [name for name in os.listdir(tmp_path) if not name.startswith(".")]
    assert sorted(kept) == sorted(entry_of(data).sha256 for data in contents[2:])
    blocks.get(entry_of(contents[4]), source_of(contents[4], calls), "x")
    assert len(calls) == 5
    blocks.get(entry_of(contents[0]), source_of(contents[0], calls), "x")
    assert len(calls) == 6
    with pytest.raises(DataError, match=r"data\.block_cache_bytes: 3000 is less than one object"):
        blocks.get(entry_of(b"x" * 3001), source_of(b"x" * 3001, calls), "x")


@pytest.mark.parametrize("left", [b"", b"y" * 1000, b"x" * 999])
def test_block_cache_refetches_after_power_loss(tmp_path: Path, left: bytes) -> None:
    data, calls = b"x" * 1000, list[int]()
    (tmp_path / entry_of(data).sha256).write_bytes(left)
    assert bytes(BlockCache(str(tmp_path), 5000).get(entry_of(data), source_of(data, calls), "x")) == data
    assert calls == [1000]
    assert (tmp_path / entry_of(data).sha256).read_bytes() == data


def test_block_cache_serves_what_another_process_evicts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def replace_and_evict(source: str, target: str) -> None:
        replace(source, target)
        os.unlink(target)

    monkeypatch.setattr(os, "replace", replace_and_evict)
    data = b"x" * 1000
    assert bytes(BlockCache(str(tmp_path), 5000).get(entry_of(data), source_of(data, []), "x")) == data


def test_block_cache_full_disk_is_one_line_without_residue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DataError, match="No space left on device"):
        BlockCache(str(tmp_path), 5000).get(entry_of(b"x"), source_of(b"x", []), "x")
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".lock")] == []


PROCESS = """
import sys
from midstream_engine.config import DataConfig
from midstream_engine.data.prepared_data import open_cache
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
root, url, text = sys.argv[1:]
cache = open_cache(root, [text], DataConfig(tokenizer="bytes", cache_dir=url, block_cache_bytes=4000), ByteTokenizer())
assert not cache.local
for _ in range(5):
    print(sum(cache.read(start, 100).sum() for start in range(0, cache.tokens - 100, 100)))
"""


@pytest.mark.drawn
@pytest.mark.usefixtures("bucket")
def test_block_cache_too_small_is_shared_by_processes(corpus: Path) -> None:
    here = opened(corpus / "one", config(corpus))
    expected = sum(int(here.read(start, 100).sum()) for start in range(0, here.tokens - 100, 100))
    command = [sys.executable, "-c", PROCESS, str(corpus / "two"), URL, str(corpus / "a.txt")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=300)[0].split() for process in running]
    assert [process.returncode for process in running] == [0] * 3
    assert answers == [[str(expected)] * 5] * 3
    folder = corpus / "two" / "data" / ".blocks"
    assert sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith(".lock")) <= 4000


# -------------------------------------------------------------------------------------------------------- validation


def test_validation_set_is_found_by_digest_without_text(corpus: Path) -> None:
    settings = config(corpus, cache_dir=None, validation_urls=[str(corpus / "v.txt")])
    first = open_validation(str(corpus / "one"), settings, ByteTokenizer())
    assert first is not None
    recorded = first.to_json()
    (corpus / "v.txt").unlink()
    with pytest.raises(DataError, match="names no file"):
        open_validation(str(corpus / "two"), settings, ByteTokenizer(), recorded)
    moved = corpus / "two" / "data" / recorded[""]["digest"]
    moved.parent.mkdir(parents=True)
    os.rename(first.sets[""].directory, moved)  # as a migration brings it
    again = open_validation(str(corpus / "two"), settings, ByteTokenizer(), recorded)
    assert again is not None
    assert again.to_json() == recorded
    with pytest.raises(DataError, match="names no file"):  # another request is another set
        open_validation(
            str(corpus / "two"), config(corpus, cache_dir=None, validation_urls=["nowhere"]), ByteTokenizer(), recorded
        )
