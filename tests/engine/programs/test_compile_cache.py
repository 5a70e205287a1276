"""A compile cache in a bucket: the first host fills it, the next one compiles nothing."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_engine.runtime.compile_cache import SharedCache, is_shared
from simulators.object_stores.bucket import BucketServer
from simulators.planted_faults import Fault
from support.engines.engine_runs import environment
from support.paths import CONFIGS


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer() as server:
        server.create("compiled")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def write(directory: Path, **files: bytes) -> None:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name.replace("_", "-")).write_bytes(data)


@pytest.mark.usefixtures("bucket")
def test_compile_cache_is_shared_between_hosts(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = SharedCache("gs://compiled/runs/cache/", str(one))
    assert first.fetch() == 0, "nothing is there yet"
    write(one, jit_step_cache=b"program" * 1000, jit_step_atime=b"12345678", jit_eval_cache=b"grows")
    assert first.upload() == 0, "a file that was never seen may still be written"
    write(one, jit_eval_cache=b"grows on")
    assert first.upload() == 1
    assert first.upload() == 1
    assert first.upload() == 0, "each is sent once"
    second = SharedCache("gs://compiled/runs/cache", str(two))
    assert second.fetch() == 2
    assert sorted(os.listdir(two)) == ["jit-eval-cache", "jit-step-cache"]
    assert (two / "jit-step-cache").read_bytes() == b"program" * 1000
    assert second.fetch() == 0
    write(two, jit_step_cache=b"the same program, compiled again")
    third = SharedCache("gs://compiled/runs/cache", str(two))
    third._sizes = third._local()
    assert third.upload() == 2, "it did not know of them, and looked"
    assert SharedCache("gs://compiled/runs/cache", str(tmp_path / "three")).fetch() == 2
    assert (tmp_path / "three/jit-step-cache").read_bytes() == b"program" * 1000, "the first one stays"


def test_compile_cache_in_missing_bucket_logs_one_line(
    bucket: BucketServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "one", jit_step_cache=b"program")
    one = SharedCache("gs://compiled/cache", str(tmp_path / "one"))
    assert [one.upload(), one.upload()] == [0, 1]
    bucket.faults.append(Fault("GET", "jit-step-cache", 403, times=100))
    with caplog.at_level(logging.WARNING):
        SharedCache("gs://compiled/cache", str(tmp_path / "two")).start()
    assert "continuing without it" in caplog.text


def test_compile_cache_shares_buckets_only() -> None:
    assert is_shared("gs://a/b")
    assert not is_shared("/a/b")


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


def compiled(root: Path) -> tuple[int, int]:
    """Compile a program under a root in a process of its own; return hits and misses."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(CONFIGS / "gpt2_tiny.yaml"), str(root)],
        env=environment(root, 1), capture_output=True, text=True, check=True,
    )  # fmt: skip
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


def test_programs_of_one_root_are_found_under_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "a" / "deeper" / "two"
    hits, misses = compiled(one)
    assert hits == 0
    assert misses > 0
    assert compiled(one) == (misses, 0)
    shutil.copytree(one / "compile-cache", two / "compile-cache")
    assert compiled(two) == (misses, 0)
