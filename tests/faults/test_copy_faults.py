"""Copies over real SSH with cut connections, killed operators and full disks."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.errors import ConnectionLostError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.hosts.local_host import LocalHost
from midstream.transfer.copy_history import copy_history
from midstream.transfer.copy_problems import disk_full
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.report import Progress
from midstream.transfer.stream_pool import StreamPool
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from midstream_host.copy import staging
from midstream_host.object_files import INCOMING
from simulators.disks import small_disk
from simulators.sshd import Lab, SshServer
from support.checkpoints.trees import (
    SOURCES,
    assert_same_tree,
    assert_unfinished,
    files,
    random_contents,
    write_checkpoint,
    write_tree,
)

MIB = 1 << 20


def connected(server: SshServer) -> Host:
    host = open_host(server.name, server.config)
    host.connect()
    return host


@pytest.mark.system
@pytest.mark.parametrize("way", ["local to ssh", "ssh to local", "ssh to ssh"])
def test_copied_checkpoint_is_byte_equal_on_any_route(lab: Lab, tmp_path: Path, way: str) -> None:
    here = LocalHost("here", LocalHostConfig(root=str(tmp_path / "root")))
    one = here if way.startswith("local") else connected(lab.host("one"))
    two = here if way.endswith("local") else connected(lab.host("two"))
    source, target = tmp_path / "source", tmp_path / "a 'quoted' $(target)"
    digest = write_checkpoint(source, random.Random(1), arrays=6, cells=8, size=MIB)
    report = copy_tree(Endpoint(one, str(source)), Endpoint(two, str(target)))
    assert report.bytes_sent == report.bytes > 48 * MIB, "two streams"
    assert_same_tree(target, source)
    assert verify_objects(two, str(target)).root_digest == digest
    assert copy_tree(Endpoint(one, str(source)), Endpoint(two, str(target))).bytes_sent == 0

    paths = records.RunPaths(one.root, "run")
    os.makedirs(paths.attempt(1).dir)
    Path(paths.attempt(1).metrics).write_text('{"global_step": 0}\n')
    copy_history(one, two, "run", source_root=one.root, target_root=two.root)
    assert Path(records.RunPaths(two.root, "run").attempt(1).metrics).read_text() == '{"global_step": 0}\n'
    for host in (one, two):
        host.close()


@pytest.mark.system
def test_corrupt_object_of_remote_source_is_named(lab: Lab, tmp_path: Path) -> None:
    one, two = connected(lab.host("one")), connected(lab.host("two"))
    source, target = tmp_path / "source", tmp_path / "target"
    write_checkpoint(source, random.Random(1))
    victim = source / "arrays/model/array2/c/3"
    content = bytearray(victim.read_bytes())
    content[-1] ^= 128
    victim.write_bytes(content)
    with pytest.raises(TransferError, match=r"object arrays/model/array2/c/3 of one:.* is corrupt"):
        copy_tree(Endpoint(one, str(source)), Endpoint(two, str(target)))
    assert not (target / records.MANIFEST).exists()
    for host in (one, two):
        host.close()


OPERATOR = """
import json, os, signal, sys
sys.path[:0] = json.loads(sys.argv[1])
from midstream.fleet.fleet import LocalHostConfig, SshHostConfig
from midstream.hosts.host_pool import open_host
from midstream.transfer.copy_settings import CopySettings
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.copy_tree import copy_tree
slow = CopySettings(bandwidth_limit=50e6)
hosts = [open_host("source", LocalHostConfig(root=sys.argv[2]))]
hosts.append(open_host("target", SshHostConfig(**json.loads(sys.argv[5]))))
for host in hosts:
    host.connect()
report = lambda p: p.objects_done >= int(sys.argv[6]) and os.kill(os.getpid(), signal.SIGKILL)
source, target = Endpoint(hosts[0], sys.argv[3]), Endpoint(hosts[1], sys.argv[4])
copy_tree(source, target, progress=report, settings=slow)
"""


@pytest.mark.system
@pytest.mark.parametrize("seed", [11, 12])
def test_killed_copy_resumes_without_resending_objects(lab: Lab, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    contents = random_contents(rng, [rng.randrange(2 * MIB) for _ in range(80)])
    write_tree(source, contents)
    server = lab.host("target")
    kill_at = rng.randrange(1, 70)  # it kills itself: the copy could be over before another process does
    argv = [json.dumps(SOURCES), str(tmp_path), str(source), str(target), json.dumps(vars(server.config)), str(kill_at)]
    operator = subprocess.run([sys.executable, "-c", OPERATOR, *argv])
    assert operator.returncode == -signal.SIGKILL, "killed in the middle"
    settle(target)
    assert not (target / records.MANIFEST).exists()
    there = named(target)
    begun = sum(map(len, files(target).values())) - sum(map(len, there.values()))
    assert_unfinished(there, contents)
    assert len(there) >= kill_at

    host = connected(server)
    report = copy_tree(
        Endpoint(LocalHost("source", LocalHostConfig(root=str(tmp_path))), str(source)), Endpoint(host, str(target))
    )
    assert set(report.skipped) == set(there)
    missing = sum(map(len, contents.values())) - sum(map(len, there.values()))
    assert missing - begun <= report.bytes_sent <= missing, "chunks of objects that were being written are kept too"
    assert_same_tree(target, source)
    host.close()


def settle(target: Path) -> None:
    """Wait until the remote programs of a cut copy have released their locks."""
    deadline = time.monotonic() + 90
    while held := [str(lock) for lock in (target / INCOMING).glob("*/lock") if is_held(lock)]:
        assert time.monotonic() < deadline, f"still running: {held}"
        time.sleep(0.02)


def is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def named(target: Path) -> dict[str, bytes]:
    """Return the files that have an object's name."""
    return {name: content for name, content in files(target).items() if not name.startswith(INCOMING)}


@pytest.mark.system
def test_cut_copy_resumes_with_same_call(lab: Lab, tmp_path: Path) -> None:
    server = lab.host("target")
    host, here = connected(server), LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    source, target = tmp_path / "source", tmp_path / "target"
    contents = random_contents(random.Random(5), [MIB] * 60)
    write_tree(source, contents)
    cut = False

    def progress(now: Progress) -> None:
        nonlocal cut
        if not cut and now.objects_done > 5:
            cut = True
            server.drop_connections()

    with pytest.raises(ConnectionLostError):
        copy_tree(Endpoint(here, str(source)), Endpoint(host, str(target)), progress=progress)
    assert cut
    settle(target)
    there = named(target)
    assert_unfinished(there, contents)
    host.connect()
    assert set(copy_tree(Endpoint(here, str(source)), Endpoint(host, str(target))).skipped) == set(there)
    assert_same_tree(target, source)
    host.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 8 MiB."""
    with small_disk(tmp_path / "disk", "8m") as mounted:
        if not mounted:
            pytest.skip("no tmpfs can be mounted: run as root with CAP_SYS_ADMIN")
        yield tmp_path / "disk"


@pytest.mark.system
def test_small_disk_is_refused_before_sending(full_disk: Path, tmp_path: Path) -> None:
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path))) for name in ("one", "two"))
    write_tree(tmp_path / "source", random_contents(random.Random(1), [MIB] * 12))
    expected = (
        r"no space left at two:.*/target: 13,631,488 bytes needed, [\d,]+ free "
        r"\(free space on two and run it again\)"
    )
    with pytest.raises(TransferError, match=expected):
        copy_tree(Endpoint(one, str(tmp_path / "source")), Endpoint(two, str(full_disk / "target")))
    assert not (full_disk / "target").exists()


@pytest.mark.system
def test_disk_filled_during_copy_keeps_existing_files(
    full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path))) for name in ("one", "two"))
    other_file, run = full_disk / "other file", StreamPool.run

    def filled_up(pool: StreamPool, waiting: set[str], *, landed: Callable[[], None] | None) -> None:
        """Fill the disk between the check and the copy, except for two and a half objects."""
        with open(other_file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, staging.free_bytes(str(full_disk)) - 5 * MIB // 2)
        run(pool, waiting, landed=landed)

    monkeypatch.setattr(StreamPool, "run", filled_up)
    source, target = tmp_path / "source", full_disk / "target"
    contents = {f"arrays/x/c/{index}": random.Random(index).randbytes(MIB) for index in range(6)}
    write_tree(source, contents)
    (target / "arrays/x/c").mkdir(parents=True)
    (target / "arrays/x/c/5").write_bytes(b"older content")
    with pytest.raises(TransferError, match=r"no space left at two:.*: [\d,]+ bytes needed, [\d,]+ free") as caught:
        copy_tree(Endpoint(one, str(source)), Endpoint(two, str(target)))
    assert "\n" not in str(caught.value)
    verified = {name: contents[name] for name in ("arrays/x/c/0", "arrays/x/c/1")}
    assert_same_tree(named(target), {**verified, "arrays/x/c/5": b"older content"}, "no manifest")
    other_file.unlink()
    monkeypatch.setattr(StreamPool, "run", run)
    assert set(copy_tree(Endpoint(one, str(source)), Endpoint(two, str(target))).skipped) == set(verified)
    assert_same_tree(target, source)


@pytest.mark.system
def test_small_copy_names_the_space_it_needs(full_disk: Path, tmp_path: Path) -> None:
    """A copy needs some space beside its objects, for manifest and directories."""
    one, two = (LocalHost(name, LocalHostConfig(root=str(tmp_path))) for name in ("one", "two"))
    write_tree(tmp_path / "source", {"arrays/x/c/0": bytes(683)})
    with open(full_disk / "other file", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, staging.free_bytes(str(full_disk)) - 368_640)
    with pytest.raises(TransferError, match=r": 1,049,259 bytes needed, 3\d\d,\d{3} free"):
        copy_tree(Endpoint(one, str(tmp_path / "source")), Endpoint(two, str(full_disk / "target")))


def test_disk_without_inodes_or_quota_is_not_called_full(tmp_path: Path) -> None:
    two = LocalHost("two", LocalHostConfig(root=str(tmp_path)))
    error = disk_full(Endpoint(two, "/d"), needed=683, free=368_640)
    assert error.message == "the disk of two:/d accepts no more: 683 bytes are left to copy, and 368,640 are free"
    assert "df -i on two" in error.hint
