"""Tokenizing: independent of the number of processes, and resumed after a kill."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from midstream_core import records
from midstream_engine.config import DataConfig
from midstream_engine.data.errors import DataError
from midstream_engine.data.prepared_data import data_root, open_cache
from midstream_engine.data.sources.list_sources import list_sources
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize import tokenize_units, tokenizing_directory, units
from midstream_engine.data.tokenize.progress_bar import ProgressBar
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer, load_tokenizer

UNIT = 2000  # bytes


def tokenized_units(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the number of each unit is added as this process tokenizes it."""
    made: list[int] = []
    real = units.tokenize

    def tokenize(unit: units.Unit, *rest: object) -> units.Finished:
        made.append(unit.number)
        return real(unit, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(units, "tokenize", tokenize)
    return made


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    """40 kB in lines, rows and complete files: about 25 units."""
    rng = np.random.default_rng(3)
    texts = ["".join(map(chr, rng.integers(97, 123, int(size)))) for size in rng.integers(0, 300, 200)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:100]))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[100:150]))
    for number, text in enumerate(texts[150:]):
        (folder / f"c{number:02d}.txt").write_text(text)
    return [str(folder / "*.jsonl"), str(folder / "*.txt")]


def config(**changes: object) -> DataConfig:
    return DataConfig(**{"tokenizer": "bytes", **changes})  # pyright: ignore[reportArgumentType]


def test_tokenizing_is_independent_of_process_count(tmp_path: Path, corpus: list[str]) -> None:
    full = open_cache(str(tmp_path / "0"), corpus, config(), ByteTokenizer())
    limited = open_cache(str(tmp_path / "limited"), corpus, config(max_bytes=9_000), ByteTokenizer())
    assert 8_500 < limited.tokens - limited.documents <= 9_000
    assert limited.read(0, limited.tokens).tolist() == full.read(0, limited.tokens).tolist()
    for processes, limit in [(1, None), (3, None), (2, 9_000), (0, 9_000)]:
        settings = config(num_tokenize_workers=processes, max_bytes=limit)
        root = str(tmp_path / f"{processes}-{limit}")
        built = open_cache(root, corpus, settings, ByteTokenizer(), unit_bytes=UNIT)
        assert built.digest == (limited if limit else full).digest


def test_tokenizer_file_is_loaded_by_every_process(tmp_path: Path, corpus: list[str]) -> None:
    path = word_tokenizer(tmp_path)
    tokenizer = load_tokenizer(path, "<|endoftext|>")
    here = open_cache(str(tmp_path / "1"), corpus, config(tokenizer=path), tokenizer)
    there = open_cache(
        str(tmp_path / "2"), corpus, config(tokenizer=path, num_tokenize_workers=2), tokenizer, unit_bytes=UNIT
    )
    assert here.digest == there.digest


def word_tokenizer(folder: Path) -> str:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make setup")
    vocabulary = {"<|endoftext|>": 0, **{chr(97 + i): 1 + i for i in range(26)}}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    model.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


KILLED = """
import os, sys
from midstream_engine.config import DataConfig
from midstream_engine.data.tokenize import tokenize_units
from midstream_engine.data.prepared_data import open_cache
from midstream_engine.data.sources.list_sources import list_sources
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
root, workers, unit, pipe, *urls = sys.argv[1:]
real = tokenize_units._read
def read(unit, record, task):
    # Stops after the fifth finished unit, so that the test can kill it in the middle.
    if unit.number == 5:
        print(task.directory, flush=True)
        open(pipe).read()
    return real(unit, record, task)
tokenize_units._read = read
config = DataConfig(tokenizer="bytes", num_tokenize_workers=int(workers))
open_cache(root, urls, config, ByteTokenizer(), unit_bytes=int(unit))
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_tokenizing_resumes_after_kill_without_partial_cache(
    tmp_path: Path, corpus: list[str], processes: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, pipe = str(tmp_path / "root"), str(tmp_path / "pipe")
    os.mkfifo(pipe)
    command = [sys.executable, "-c", KILLED, root, str(processes), str(UNIT), pipe, *corpus]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        directory = killed.stdout.readline().strip()
        assert os.path.isdir(directory)
        workers = children(killed.pid)
        assert len(workers) == processes
        killed.kill()
    assert killed.returncode == -9
    until(lambda: not any(map(records.is_running, workers)))
    kept = {name for name in os.listdir(directory) if name.endswith(".json")}
    assert len(kept) >= 6
    assert not any(os.path.exists(os.path.join(data_root(root), name, "manifest.json")) for name in os.listdir(root))
    Path(directory, "7.tokens.123.tmp").write_bytes(b"half")  # what a power cut may leave

    made = tokenized_units(monkeypatch)
    with caplog.at_level(logging.INFO):
        built = open_cache(root, corpus, config(), ByteTokenizer(), unit_bytes=UNIT)
    assert not set(made) & {int(name.removesuffix(".json")) for name in kept}
    assert made
    assert f"{len(kept)} of " in caplog.text
    assert "shards were already finished" in caplog.text
    assert not os.path.exists(directory)
    assert sorted(os.listdir(data_root(root))) == [".requests", built.digest]
    assert built.digest == open_cache(str(tmp_path / "uninterrupted"), corpus, config(), ByteTokenizer()).digest


def children(pid: int) -> list[records.ProcessIdentity]:
    """Return the child processes of ``pid``."""
    named = [name.read_text().split() for name in Path("/proc", str(pid), "task").glob("*/children")]
    found = [records.identify(int(child)) for names in named for child in names]
    return [child for child in found if child is not None]


def until(look: Callable[[], bool], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tokenizing_redoes_damaged_shard(tmp_path: Path, corpus: list[str]) -> None:
    full = open_cache(str(tmp_path / "uninterrupted"), corpus, config(), ByteTokenizer())
    work = units.cut(list_sources(corpus), UNIT)
    directory = tmp_path / "work"
    directory.mkdir()
    task = tokenize_units.Task(str(directory), ByteTokenizer(), "bytes", "", "text", None)
    for unit in work[:3]:
        units.tokenize(unit, str(directory), ByteTokenizer(), "text", None)
    with open(directory / "1.tokens", "r+b") as file:
        file.write(b"\xff")
    (directory / "2.lengths").unlink()
    tokens = np.concatenate([tokens for tokens, _ in tokenize_units.tokenize(work, task)])
    assert tokens.tolist() == full.read(0, full.tokens).tolist()


def test_tokenizing_bad_text_is_one_line_and_keeps_shards(tmp_path: Path, corpus: list[str]) -> None:
    bad = Path(corpus[0]).parent / "bz.jsonl"
    bad.write_text('{"text": "a"}\n{"body": "b"}\n')
    root = str(tmp_path / "root")
    with pytest.raises(DataError, match=r"bz\.jsonl:2: has no text under 'text'"):
        open_cache(root, corpus, config(num_tokenize_workers=2), ByteTokenizer(), unit_bytes=UNIT)
    (left,) = [name for name in os.listdir(data_root(root)) if name.startswith(".tokenizing-")]
    assert os.listdir(os.path.join(data_root(root), left))
    assert not [name for name in os.listdir(data_root(root)) if not name.startswith(".")]


def test_tokenizing_reports_process_that_exits(
    tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    real = tokenize_units._Processes._start

    def start(self: tokenize_units._Processes) -> subprocess.Popen[str]:
        process = real(self)
        started.append(process)
        process.kill()
        return process

    monkeypatch.setattr(tokenize_units._Processes, "_start", start)
    with pytest.raises(DataError, match=r"ended with -9 at .*finished shards are reused"):
        open_cache(str(tmp_path), corpus, config(num_tokenize_workers=2), ByteTokenizer(), unit_bytes=UNIT)
    assert all(process.returncode is not None for process in started)


def test_tokenizing_same_text_happens_once(tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenized_units(monkeypatch)

    def build(_: int) -> TokenCache:
        return open_cache(str(tmp_path / "root"), corpus, config(), ByteTokenizer(), unit_bytes=UNIT)

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build, range(4)))
    assert len({cache.digest for cache in built}) == 1
    assert sorted(made) == list(range(len(made)))


def test_tokenizing_uses_processes_for_large_text() -> None:
    def wanted(sizes: list[int], limit: int | None = None, workers: int = 0) -> int:
        work = [units.Unit(number, (), size) for number, size in enumerate(sizes)]
        task = tokenize_units.Task("", ByteTokenizer(), "bytes", "", "text", limit)
        return tokenize_units.processes_for(work, task, workers)

    cpus = len(os.sched_getaffinity(0))
    assert wanted([1000] * 20) == 0
    assert wanted([32 << 20] * 20) == min(cpus, 20)
    assert wanted([32 << 20] * 20, limit=8_000_000) == 0
    assert wanted([1 << 30]) == 0
    assert wanted([1000] * 20, workers=3) == 3


def test_tokenizing_progress_shows_fraction_and_time() -> None:
    progress = ProgressBar(4, 4_000_000_000)
    progress.add(1_000_000_000, 250_000_000, True)
    progress.add(1_000_000_000, 250_000_000, False)
    text = progress.text(progress._began + 100)
    assert text == "2 of 4 shards, 2.00 of 4.00 GB, 10.0 MB/s, 500.0 M tokens, 3 min left"


def test_tokenizing_removes_only_abandoned_work(tmp_path: Path, corpus: list[str]) -> None:
    place = Path(data_root(str(tmp_path)))
    for name in ("forgotten", "busy", "young"):
        (place / f".tokenizing-{name}").mkdir(parents=True)
        (place / f".tokenizing-{name}" / "0.tokens").write_bytes(b"x")
    lock = place / ".tokenizing-busy" / ".lock"
    lock.touch()
    for name in ("forgotten", "busy"):
        os.utime(place / f".tokenizing-{name}", (0, 0))
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        open_cache(str(tmp_path), corpus, config(), ByteTokenizer())
    finally:
        os.close(descriptor)
    left = sorted(name for name in os.listdir(place) if name.startswith(".tokenizing"))
    assert left == [".tokenizing-busy", ".tokenizing-young"]


def test_tokenizing_worker_that_cannot_start_leaves_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other units are submitted already: the thread of the next one would wait for a process for good."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(tokenize_units.subprocess, "Popen", refused)
    pool = tokenize_units._Processes(tokenize_units.Task(str(tmp_path), ByteTokenizer(), "bytes", "", "text", None), 1)
    with pytest.raises(OSError, match="Resource temporarily unavailable"):
        pool._run(units.Unit(0, (), 0))
    assert pool._idle.qsize() == 1
    with pool:
        pass


def test_tokenizing_abandoned_work_is_not_found_partly_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, removed = tmp_path / ".tokenizing-request", list[bool]()
    directory.mkdir()
    (directory / ".lock").touch()
    os.utime(directory, (0, 0))
    monkeypatch.setattr(tokenizing_directory.shutil, "rmtree", lambda *_, **__: removed.append(directory.exists()))
    with tokenizing_directory.tokenizing_directory(str(tmp_path), "other"):
        assert removed == [False]


def test_tokenizing_directory_that_stays_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on NFS, where the directory of a file that is open somewhere cannot be removed.
    monkeypatch.setattr(tokenizing_directory.shutil, "rmtree", lambda *_, **__: None)
    for _ in range(2):
        with tokenizing_directory.tokenizing_directory(str(tmp_path), "request") as directory:
            Path(directory, "0.tokens").write_bytes(b"x")
    assert not Path(tmp_path, ".tokenizing-request").exists()


def test_tokenizing_command_needs_no_jax(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text that is long enough")
    script = (
        "import sys\nfrom midstream_engine.data.__main__ import main\ncode = main(sys.argv[1:])\n"
        "assert not {'jax', 'haliax', 'google.cloud', 'pyarrow'} & set(sys.modules)\nsys.exit(code)"
    )
    flags = ["--trainer.root", str(tmp_path), "--model.seq_len", "8", "--data.tokenizer", "bytes"]
    flags += ["--data.train_urls", str(tmp_path / "a.txt")]
    done = subprocess.run([sys.executable, "-c", script, *flags], capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)["tokens"]) == (0, 30), done.stderr
