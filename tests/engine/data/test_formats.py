"""Documents from files: each format, plain and compressed, complete and in units, local and http."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_core.object_store.open_bucket import close_clients
from midstream_engine.config import DataConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.prepared_data import open_training, open_validation
from midstream_engine.data.sources import formats, http, hugging_face_hub, list_sources
from midstream_engine.data.sources.formats import SourcePart
from midstream_engine.data.sources.source_file import SourceFile
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize import units
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
from simulators.object_stores.file_server import FileServer
from support.commit_seed import commit_seed

TEXTS = ["one", "zwei \u20ac", "", "drei\nvier", "x" * 3000, "\u0645\u0631\u062d\u0628\u0627"]
EXPECTED = [text.encode() for text in TEXTS]
LINES = "".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(TEXTS)).encode()


def read(*urls: str, text_key: str = "text") -> list[bytes]:
    return list(list_sources.documents(list_sources.list_sources(urls), text_key=text_key, max_bytes=None))


def parquet(rows_a_group: int = 2, texts: list[str] = TEXTS) -> bytes:
    reason = "needs pyarrow: make setup"
    arrow = pytest.importorskip("pyarrow", reason=reason)
    parquet = pytest.importorskip("pyarrow.parquet", reason=reason)
    file = io.BytesIO()
    table = arrow.table({"id": list(range(len(texts))), "text": texts})
    parquet.write_table(table, file, row_group_size=rows_a_group)
    return file.getvalue()


def zstd(data: bytes, parts: int = 1) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard: make setup")
    step = -(-len(data) // parts)
    frames = [data[start : start + step] for start in range(0, len(data), step)]
    return b"".join(zstandard.ZstdCompressor().compress(frame) for frame in frames)


def test_formats_give_the_same_documents(tmp_path: Path) -> None:
    files = {
        "a.jsonl": LINES,
        "a.ndjson": LINES,
        "a.json": LINES,
        "b.json": json.dumps([{"text": text} for text in TEXTS], indent=1).encode(),
        "a.jsonl.gz": gzip.compress(LINES),
        "a.json.gz": gzip.compress(LINES),
        "a.jsonl.zst": zstd(LINES),
        "b.jsonl.zst": zstd(LINES, parts=5),  # frames end in the middle of lines
        "a.parquet": parquet(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        assert read(str(tmp_path / name)) == EXPECTED, name
    (tmp_path / "a.txt").write_bytes(LINES)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "a.txt.zst").write_bytes(zstd(LINES))
    assert read(str(tmp_path / "a.txt*")) == [LINES] * 3


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": 7}\n', r"a\.jsonl:2: has no text under 'text'"),
        ("a.jsonl", b'{"text": "a"}\n[]\n', r"a\.jsonl:2: has no text"),
        ("a.jsonl", b'\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.json", b'[{"text": "a"}, {"body": "a"}]', r"a\.json, item 1: has no text"),
        ("a.jsonl.gz", gzip.compress(LINES)[:-9], r"a\.jsonl\.gz: .*end"),
        ("a.jsonl.gz", b"no gzip at all", r"a\.jsonl\.gz: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(LINES)[:20] + b"\xff" * 30, r"a\.jsonl\.gz: "),
        ("a.jsonl.zst", zstd(LINES)[:-5], r"a\.jsonl\.zst: ends in the middle of a Zstandard frame"),
        ("a.jsonl.zst", b"no zstd at all, really not", r"a\.jsonl\.zst: damaged Zstandard data"),
        ("a.parquet", parquet()[:-9], r"a\.parquet: "),
        ("a.parquet", b"PAR1", r"a\.parquet: "),
        ("a.jsonl.gz", b"", r"a\.jsonl\.gz: is empty: \.gz files are not"),
        ("a.jsonl.zst", b"", r"a\.jsonl\.zst: is empty"),
        ("a.jsonl.xz", b"\xfd7zXZ\0", r"a\.jsonl\.xz: \.xz is not read \(hint: unpack it"),
        ("a.tar.gz", gzip.compress(LINES), r"a\.tar\.gz: \.tar is not read"),
    ],
    # Compressed bytes carry the time of day; a test's name may not.
    ids=[
        "number",
        "list",
        "cut-json",
        "item",
        "cut-gzip",
        "no-gzip",
        "bad-gzip",
        "cut-zstd",
        "no-zstd",
        "cut-parquet",
        "magic",
        "empty-gzip",
        "empty-zstd",
        "xz",
        "tar",
    ],
)
def test_damaged_text_is_one_line(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=said) as caught:
        read(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt"])
def test_local_file_changed_during_read_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(parquet(texts=TEXTS * 100) if name == "a.parquet" else LINES * 100)
    listed = list_sources.list_sources([str(path)])
    documents = list_sources.documents(listed, text_key="text", max_bytes=None)
    next(documents)
    path.write_bytes(path.read_bytes() + LINES)
    with pytest.raises(DataError, match=rf"{name} has changed while it was read \(hint: start again\)"):
        list(documents)
    with pytest.raises(DataError, match="has changed"):
        list(list_sources.documents(listed, text_key="text", max_bytes=None))


def test_parquet_without_text_column_lists_columns(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet())
    with pytest.raises(DataError, match=r"no column 'body' \(data\.text_key\); it has id, text"):
        read(str(tmp_path / "a.parquet"), text_key="body")
    with pytest.raises(DataError, match=r"row 0: 'id' is no text"):
        read(str(tmp_path / "a.parquet"), text_key="id")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(LINES))
    (tmp_path / "a.parquet").write_bytes(b"")
    for package, url in (("zstandard", "a.jsonl.zst"), ("pyarrow", "a.parquet")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=f"pip install {package}"):
            read(str(tmp_path / url))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="'wikitext' needs the package datasets"):
        read("hf://wikitext?split=train")


def test_hugging_face_dataset_is_read_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets", reason="needs the package datasets: pip install datasets")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.jsonl").write_bytes(LINES)
    (tmp_path / "corpus" / "validation.jsonl").write_bytes(LINES.splitlines()[0])
    monkeypatch.setattr(units, "_DATASET_ROWS", 4)
    for split, expected in (("train", EXPECTED), ("validation", EXPECTED[:1])):
        (source,) = list_sources.list_sources([hugging_face_hub.dataset_url(str(tmp_path / "corpus"), None, split)])
        work = units.cut([source])
        assert [text for unit in work for text in formats.documents(unit.pieces[0], "text")] == expected
        assert len(work) == -(-len(expected) // 4)
    with pytest.raises(DataError, match=r"has no column 'body' \(data\.text_key\); it has text, id"):
        list(formats.documents(SourcePart(source), "body"))


def test_saved_dataset_is_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets", reason="needs the package datasets: pip install datasets")
    rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    rows.save_to_disk(str(tmp_path / "alone"))
    datasets.DatasetDict(train=rows, validation=rows.select([1])).save_to_disk(str(tmp_path / "both"))
    rows.to_parquet(str(tmp_path / "files" / "train.parquet"))
    root, tokenizer = str(tmp_path / "root"), ByteTokenizer()
    for name in ("alone", "both", "files"):
        settings = DataConfig(tokenizer="bytes", id=str(tmp_path / name))
        found = open_training(root, settings, tokenizer, seq_len=4)
        assert isinstance(found, TokenCache)
        assert found.read(0, found.tokens).tolist() == [*b"one", 256, *b"two", 256]
        held_out = open_validation(root, settings, tokenizer)
        assert (held_out is None) == (name != "both")
    assert caplog.text.count("nothing is evaluated on it; data.validation_urls names other text") == 2


def test_line_file_units_give_its_documents_at_any_cut(tmp_path: Path) -> None:
    seed = commit_seed()
    rng = random.Random(seed)
    texts = ["".join(rng.choices("ab\u00e4\n ", k=rng.choice([0, 1, 5, 200]))) for _ in range(60)]
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + rng.choice(["\n", "\n\n"]) for text in texts)
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines.rstrip("\n").encode())
    (source,) = list_sources.list_sources([str(path)])
    expected = [text.encode() for text in texts]
    for size in [1, 7, 100, *(rng.randrange(2, 3000) for _ in range(20))]:
        work = units.cut([source], size)
        found = [text for unit in work for piece in unit.pieces for text in formats.documents(piece, "text")]
        assert found == expected, size
        assert sum(unit.size for unit in work) == source.size
        assert [unit.number for unit in work] == list(range(len(work)))


def test_bad_line_in_large_file_is_located_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 5 + b"{}\n")
    (source,) = list_sources.list_sources([str(path)])
    with pytest.raises(DataError, match="line at byte 70: has no text"):
        list(formats.documents(SourcePart(source, 20, None), "text"))


def test_parquet_splits_at_row_groups_and_joins_small_files(tmp_path: Path) -> None:
    texts = [str(number) * 500 for number in range(40)]
    (tmp_path / "a.parquet").write_bytes(parquet(4, texts))
    for number in range(6):
        (tmp_path / f"b{number}.txt").write_bytes(b"x" * 100)
    listed = list_sources.list_sources([str(tmp_path / "a.parquet"), str(tmp_path / "b*.txt")])
    work = units.cut(listed, 3000)
    assert len(work) > 3
    found = [text for unit in work for piece in unit.pieces for text in formats.documents(piece, "text")]
    assert found == [text.encode() for text in texts] + [b"x" * 100] * 6
    assert [len(unit.pieces) for unit in units.cut(listed[1:], 250)] == [2, 2, 2]


# ------------------------------------------------------------------------------------------------------------- http


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(http, "FIRST_DELAY", 0.001)
    with FileServer({"a.jsonl": LINES, "a.jsonl.gz": gzip.compress(LINES), "a.parquet": parquet()}) as server:
        yield server


def test_http_files_are_read(server: FileServer) -> None:
    assert read(server.url + "/a.{jsonl,jsonl.gz,parquet}") == EXPECTED * 3
    assert read(server.url + "/a.jsonl?download=true") == EXPECTED
    (source,) = list_sources.list_sources([server.url + "/a.jsonl"])
    assert (source.name, source.size) == ("a.jsonl", len(LINES))
    server.files["a.jsonl"] = b'{"text": "new"}\n'
    (changed,) = list_sources.list_sources([server.url + "/a.jsonl"])
    assert changed.version != source.version


@pytest.mark.parametrize("ranges", [True, False])
def test_http_broken_connection_resumes(server: FileServer, ranges: bool) -> None:
    server.ranges = ranges
    (source,) = list_sources.list_sources([server.url + "/a.jsonl"])
    server.breaks = [10, 700, 0, 2000]  # bytes of the next answers
    assert list(list_sources.documents([source], text_key="text", max_bytes=None)) == EXPECTED
    assert server.breaks == []


@pytest.mark.parametrize("ranges", [True, False])
def test_http_end_is_known_from_the_answer(server: FileServer, ranges: bool) -> None:
    server.sizes, server.ranges = False, ranges
    (source,) = list_sources.list_sources([server.url + "/a.jsonl"])
    assert source.size == -1
    server.breaks = [LINES.index(b"\n") + 1, 0, 2000]  # the first of them after a complete document
    assert list(list_sources.documents([source], text_key="text", max_bytes=None)) == EXPECTED
    server.breaks = [10, 700]
    assert http.get(server.url + "/a.jsonl") == LINES
    server.breaks = [100] + [0] * 50
    with pytest.raises(DataError, match="breaks off at byte 100"):
        list(list_sources.documents([source], text_key="text", max_bytes=None))


def test_http_busy_server_is_retried_and_refusal_is_not(server: FileServer) -> None:
    server.refusals = [503, 429]
    assert read(server.url + "/a.jsonl") == EXPECTED
    server.requests.clear()
    with pytest.raises(DataError, match="HTTP 404"):
        read(server.url + "/nothing.jsonl")
    assert len(server.requests) == 1
    server.head = False  # a server without HEAD
    assert read(server.url + "/a.jsonl") == EXPECTED


def test_http_file_changed_during_read_is_refused(server: FileServer) -> None:
    (source,) = list_sources.list_sources([server.url + "/a.jsonl"])
    server.files["a.jsonl"] = LINES.replace(b"one", b"two")
    with pytest.raises(DataError, match="has changed while it was read"):
        list(list_sources.documents([source], text_key="text", max_bytes=None))


def test_http_endless_empty_answers_are_given_up(server: FileServer) -> None:
    (source,) = list_sources.list_sources([server.url + "/a.jsonl"])
    server.breaks = [100] + [0] * 50
    with pytest.raises(DataError, match="breaks off at byte 100"):
        list(list_sources.documents([source], text_key="text", max_bytes=None))


@pytest.mark.usefixtures("server")
def test_http_unreachable_server_is_reported() -> None:
    source = SourceFile("http://127.0.0.1:9/a.jsonl", "a.jsonl", 3, "")
    with pytest.raises(DataError, match=r"refused \(6 attempts\)"):
        list(list_sources.documents([source], text_key="text", max_bytes=None))


# ----------------------------------------------------------------------------------------------------------- bucket


@pytest.fixture
def bucket(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    pytest.importorskip("google.cloud.storage", reason="needs google-cloud-storage: make setup")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_clients()
    yield server
    close_clients()


def test_bucket_listing_is_read_through_all_pages(bucket: FileServer) -> None:
    bucket.files = {
        "corpus/a.jsonl": LINES, "corpus/b.jsonl": LINES, "corpus/deep/c.jsonl.gz": gzip.compress(LINES),
        "corpus/d.json": b"\n " + json.dumps([{"text": text} for text in TEXTS]).encode(),
        "corpus/d.parquet": parquet(), "corpus/e.txt": b"e", "other/f.jsonl": b"not read",
    }  # fmt: skip
    assert read("gs://bucket/corpus/*.jsonl") == EXPECTED * 2
    assert read("gs://bucket/corpus/**/*.jsonl*") == EXPECTED * 3
    assert read("gs://bucket/corpus/{d.parquet,d.json,[!a-d].txt}") == [*EXPECTED, *EXPECTED, b"e"]
    (source,) = list_sources.list_sources(["gs://bucket/corpus/a.jsonl"])
    assert (source.name, source.size) == ("a.jsonl", len(LINES))
    work = units.cut([source], 500)
    assert len(work) > 3
    assert [text for unit in work for text in formats.documents(unit.pieces[0], "text")] == EXPECTED


@pytest.mark.usefixtures("bucket")
def test_bucket_missing_object_is_one_line() -> None:
    with pytest.raises(DataError, match="names no file"):
        read("gs://bucket/nothing/*.jsonl")
    with pytest.raises(DataError, match="write gs://BUCKET/NAME"):
        read("gs://bucket")
    source = SourceFile("gs://bucket/missing.jsonl", "missing.jsonl", 3, "1")
    with pytest.raises(DataError, match=r"gs://bucket/missing\.jsonl: no such object") as caught:
        list(list_sources.documents([source], text_key="text", max_bytes=None))
    assert "\n" not in str(caught.value)
