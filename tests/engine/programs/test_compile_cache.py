"""Compiled programs on disk and in a bucket: the first host fills them, the next one compiles nothing."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from midstream_core.object_store.open_bucket import engine_bucket
from midstream_engine.runtime import program_files
from midstream_engine.runtime.program_files import ProgramBucket, ProgramFiles, packed
from simulators.object_stores.bucket import BucketServer
from simulators.planted_faults import Fault
from support.engines.engine_runs import environment
from support.paths import CONFIGS

URL = "gs://compiled/runs/cache"
KEY = {"jaxlib": "0.10.2", "mesh": [["data", 2]]}
CONTENT = b"program" * 1000


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer() as server:
        server.create("compiled")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def host(directory: Path, url: str = URL) -> ProgramFiles:
    """The compile cache of a host; ``shared`` waits for its uploads."""
    return ProgramFiles(str(directory), ProgramBucket(url))


def shared(files: ProgramFiles) -> ProgramFiles:
    assert files.bucket is not None
    files.bucket.close()
    return files


@pytest.mark.usefixtures("bucket")
def test_compile_cache_is_shared_between_hosts(tmp_path: Path) -> None:
    one = host(tmp_path / "one", f"{URL}/")
    assert one.read("step", KEY) is None, "nothing is there yet"
    one.write("step", KEY, CONTENT)
    shared(one)
    assert shared(host(tmp_path / "two")).read("step", KEY) == CONTENT
    assert ProgramFiles(str(tmp_path / "two")).read("step", KEY) == CONTENT, "it is on this disk from now on"
    stored = engine_bucket(URL).look("step")
    shared(host(tmp_path / "two")).read("step", KEY)
    late = host(tmp_path / "three")
    late.write("step", KEY, b"compiled again before the list arrived")
    shared(late)
    assert engine_bucket(URL).look("step") == stored, "the first one stays"


@pytest.mark.usefixtures("bucket")
def test_compile_cache_uploads_programs_from_before_the_bucket(tmp_path: Path) -> None:
    ProgramFiles(str(tmp_path)).write("step", KEY, CONTENT)
    files = host(tmp_path)
    assert files.read("step", KEY) == CONTENT
    shared(files)
    assert list(engine_bucket(URL).entries()) == ["step"]


def partial(data: bytes) -> bytes:
    return data[:-100]


def changed(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def renamed(_: bytes) -> bytes:
    """The program of another version, under this name."""
    return packed(CONTENT, {**KEY, "jaxlib": "0.10.1"})


def foreign(_: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes(100)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("damage", [partial, changed, renamed, foreign])
@pytest.mark.parametrize("damaged", ["file", "object"])
def test_damaged_program_is_named_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes], damaged: str
) -> None:
    files = host(tmp_path / "one")
    files.write("step", KEY, CONTENT)
    shared(files)
    bad, directory = damage(packed(CONTENT, KEY)), tmp_path / ("one" if damaged == "file" else "two")
    if damaged == "file":
        (directory / "step").write_bytes(bad)
        files = ProgramFiles(str(directory))
    else:
        engine_bucket(URL).put("step", bad)
        files = host(directory)
    with caplog.at_level(logging.WARNING):
        assert files.read("step", KEY) is None
    assert f"{directory}/step" in caplog.text or f"{URL}/step is not used" in caplog.text
    assert "is not used" in caplog.text
    files.write("step", KEY, b"compiled again")
    if damaged == "object":
        shared(files)
        assert shared(host(tmp_path / "three")).read("step", KEY) == b"compiled again", "and for all other hosts"
    assert files.read("step", KEY) == b"compiled again"


@pytest.mark.usefixtures("bucket")
def test_damaged_file_is_replaced_from_the_bucket(tmp_path: Path) -> None:
    files = host(tmp_path)
    files.write("step", KEY, CONTENT)
    shared(files)
    (tmp_path / "step").write_bytes(b"")
    assert shared(host(tmp_path)).read("step", KEY) == CONTENT
    assert ProgramFiles(str(tmp_path)).read("step", KEY) == CONTENT


def test_program_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ProgramFiles(str(tmp_path))
    files.write("step", KEY, CONTENT)
    monkeypatch.setattr(program_files.os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert files.read("step", KEY) is None
    assert "belongs to another user" in caplog.text


def test_unreachable_bucket_delays_no_program(
    bucket: BucketServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = host(tmp_path / "one")
    one.write("step", KEY, CONTENT)
    shared(one)
    bucket.faults.append(Fault("GET", "step", 403, times=100))
    two = shared(host(tmp_path / "two"))
    assert two.read("step", KEY) is None
    assert two.read("step", KEY) is None
    assert caplog.text.count("continuing without it") == 1


COMPILE = """
import sys, jax
from midstream_engine.config import load_config
from midstream_engine.runtime.jax_settings import configure_jax
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
configure_jax(load_config(["--config_path", sys.argv[1]]).config, sys.argv[2])
jax.jit(lambda x: x * 2 + 1)(jax.numpy.ones(8)).block_until_ready()
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def compiled(root: Path, extra: Mapping[str, str] | None = None) -> tuple[int, int, str]:
    """Compile a program under a root in a process of its own; return hits, misses and the log."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(CONFIGS / "gpt2_tiny.yaml"), str(root)],
        env=environment(root, 1, extra), capture_output=True, text=True, check=True,
    )  # fmt: skip
    hits, misses = done.stdout.split()
    return int(hits), int(misses), done.stderr


@pytest.mark.drawn
def test_programs_of_one_root_are_found_under_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "a" / "deeper" / "two"
    hits, misses, _ = compiled(one)
    assert hits == 0
    assert misses > 0
    assert compiled(one)[:2] == (misses, 0)
    shutil.copytree(one / "compile-cache", two / "compile-cache")
    assert compiled(two)[:2] == (misses, 0)
    for file in (two / "compile-cache/programs").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    *counts, log = compiled(two)
    assert counts == [0, misses]
    assert log.count("is partial; the program is compiled again") == misses
    assert compiled(two)[:2] == (misses, 0), "they were replaced"


@pytest.mark.drawn
def test_programs_of_jax_are_shared_through_a_bucket(bucket: BucketServer, tmp_path: Path) -> None:
    extra = {**bucket.environment, "JAX_COMPILATION_CACHE_DIR": URL}
    hits, misses, _ = compiled(tmp_path / "one", extra)
    assert hits == 0
    assert compiled(tmp_path / "two", extra)[:2] == (misses, 0)
