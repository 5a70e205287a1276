"""A save that is killed, or has no space, leaves the older checkpoint the newest."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from midstream_core.records import RunPaths
from midstream_engine.checkpoint.errors import CheckpointFullError
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from simulators.disks import small_disk
from support.checkpoints.checkpoint_states import STATE, plain_state, save
from support.paths import TESTS

# A process that saves and kills itself (SIGKILL) at chosen calls: it imports once, then forks for each call.
KILLER = """
import json, os, shutil, signal, sys, threading
from support.checkpoints.checkpoint_states import plain_state, save
from midstream_engine.checkpoint.stores.mounts import check_mount
from midstream_core.records import RunPaths

counted, lock = [0], threading.Lock()

def counting(original, fatal, partial):
    def call(*arguments):
        with lock:
            counted[0] += 1
            mine = counted[0]
        if mine == fatal:
            if partial:
                descriptor, data = arguments
                original(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    return call

def attempt(root, fatal):
    os.write = counting(os.write, fatal, True)
    for name in ("fsync", "replace"):
        setattr(os, name, counting(getattr(os, name), fatal, False))
    save(RunPaths(root, "run"), plain_state(seed=2), step=20)

template, where = sys.argv[1:3]
os.makedirs(where, exist_ok=True)
check_mount(where)  # once a process: no part of a save
for fatal in json.loads(sys.argv[3]):
    root = os.path.join(where, str(fatal))
    shutil.copytree(template, root)
    child = os.fork()
    if not child:
        attempt(root, fatal)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps({"fatal": fatal, "signal": os.WTERMSIG(status), "exit": os.waitstatus_to_exitcode(status)}))
"""


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path / "root"), "run")


def run_killer(template: str, where: Path, fatal: list[int]) -> list[dict]:
    environment = dict(os.environ, PYTHONPATH=str(TESTS), JAX_PLATFORMS="cpu")
    command = [sys.executable, "-W", "ignore", "-c", KILLER, template, str(where), json.dumps(fatal)]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def count_calls(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count the calls of one complete save that the killer counts."""
    calls = []
    with monkeypatch.context() as patched:
        for name in ("write", "fsync", "replace"):
            original = getattr(os, name)

            def call(*arguments, original=original, **more):
                calls.append(original)
                return original(*arguments, **more)

            patched.setattr(os, name, call)
        save(paths, plain_state(seed=2), step=20)
    shutil.rmtree(paths.checkpoint("step-20-a001"))
    return len(calls)


def test_killed_save_keeps_older_checkpoint_and_is_repeatable(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = save(paths, plain_state(), step=10)
    calls = count_calls(paths, monkeypatch)
    seed = random.randrange(2**32)
    print(f"seed {seed}, {calls} calls")
    # Always: the first, and the last ones, which sync the manifest, rename it and sync its directory.
    fatal = sorted({1, calls - 2, calls - 1, calls, *random.Random(seed).sample(range(1, calls), 12)})
    digests = set()
    for outcome in run_killer(paths.root, tmp_path / "killed", fatal):
        point = outcome["fatal"]
        assert outcome["signal"] == 9, f"call {point}: not killed"
        killed = RunPaths(str(tmp_path / "killed" / str(point)), "run")
        newest = newest_complete(killed, None)
        if point == calls:  # after the rename: the new one is complete, and has to be sound
            assert newest == "step-20-a001"
        else:
            assert newest == older.name, f"call {point}"
            assert [found.complete for found in list_checkpoints(killed)] in ([True], [True, False])
        assert newest is not None
        assert verify_checkpoint(killed.checkpoint(newest)).sound
        digests.add(save(killed, plain_state(seed=2), step=20).root_digest)  # the same attempt tries again
        report = verify_checkpoint(killed.checkpoint("step-20-a001"), deep=True)
        assert report.sound
        assert report.unlisted == []
    assert len(digests) == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    with small_disk(tmp_path / "disk", "16m") as mounted:
        if not mounted:
            pytest.skip("a full disk: mounting a small tmpfs needs root and CAP_SYS_ADMIN (sudo make test)")
        yield tmp_path / "disk"


def files(directory: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


@pytest.mark.system
@pytest.mark.parametrize("foreseen", [True, False])
def test_full_disk_is_one_line_and_keeps_older_checkpoints(
    full_disk: Path, foreseen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreseen from the free space, or not, because another program used the space during the save."""
    paths = RunPaths(str(full_disk), "run")
    save(paths, plain_state(), step=10)  # 5.6 MiB
    before = files(paths.dir)
    large = {"x": np.ones((16, 1 << 18), np.float32)}  # 16 MiB
    if not foreseen:
        plenty = shutil.disk_usage(full_disk)._replace(free=1 << 40)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: plenty)
    with pytest.raises(CheckpointFullError) as caught:
        save(paths, large, step=20)
    message = str(caught.value)
    assert message.startswith(f"{paths.checkpoint('step-20-a001')}: no room for the checkpoint: ")
    assert f"{16 << 20 | 1 << 16} bytes needed" in message
    assert "older checkpoints are unchanged" in message
    assert "\n" not in message
    assert files(paths.dir) == before
    assert [found.name for found in list_checkpoints(paths)] == ["step-10-a001"]
    assert save(paths, plain_state(seed=3), step=21).name == "step-21-a001"  # there is room for a smaller one


def test_file_size_limit_is_reported_like_full_disk(paths: RunPaths) -> None:
    save(paths, plain_state(), step=10)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointFullError, match=r"no room for the checkpoint: \d+ bytes needed, File too large"):
            save(paths, plain_state(seed=2), step=20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [found.name for found in list_checkpoints(paths)] == ["step-10-a001"]


def test_disk_full_at_manifest_leaves_nothing(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(paths, plain_state(), step=10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(CheckpointFullError, match="No space left on device"):
            save(paths, plain_state(seed=2), step=20)
    assert sorted(os.listdir(paths.checkpoints)) == ["step-10-a001"]


def test_failing_disk_is_named_and_nothing_is_left(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    save(paths, plain_state(), step=10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(Exception, match=r"step-20-a001: cannot be written: .*Input/output error"):
            save(paths, plain_state(seed=2), step=20)
    assert [found.name for found in list_checkpoints(paths)] == ["step-10-a001"]
    assert save(paths, plain_state(seed=2), step=20, state=STATE).step == 20
