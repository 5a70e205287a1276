"""A save of two hosts without a shared file system, of which one fails around the commit, and the next start."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.records import MANIFEST, SHARE, Fence, Manifest
from midstream_engine.attempt.resume import Origin
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import consensus
from midstream_engine.checkpoint.saving.save_group import SaveGroup
from midstream_engine.checkpoint.saving.save_rendezvous import abort_save
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.processes import shared_file_systems
from midstream_host.runs import leftovers
from support.checkpoints.spread_hosts import NAME, Hosts


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file_systems, "VISIBILITY_TIMEOUT", 0.3)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def assert_start_completes_share(hosts: Hosts, processes: str = "ab") -> None:
    """Assert that ``--clean`` does not remove the share of host b, and that the next start completes it."""
    (entry,) = leftovers.leftovers(hosts.paths("b").root, "run", quiet=0.0)
    assert (entry.path, entry.kind) == (f"checkpoints/{NAME}", "partial")
    assert "the next start" in entry.kept
    assert leftovers.remove(hosts.paths("b").root, "run", {entry.path: entry.changed}, quiet=0.0) == []
    found = hosts.start(processes)
    assert [origin.name for origin in found if isinstance(origin, Origin)] == [NAME, NAME], found
    assert_complete(hosts)


def assert_complete(hosts: Hosts) -> None:
    for host in "ab":
        report = verify_checkpoint(str(hosts.share(host)), deep=True)
        assert (report.manifest.host, report.flaws, report.unlisted) == (host, [], [])
        assert [entry.host for entry in report.manifest.spread_hosts] == ["a", "b"]


def change_commit(
    monkeypatch: pytest.MonkeyPatch,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Call a function before or after the commit of process 0."""
    commit = consensus.commit

    def changed(*arguments: Any, **named: Any) -> Manifest:
        if before is not None:
            before()
        manifest = commit(*arguments, **named)
        if after is not None:
            after()
        return manifest

    monkeypatch.setattr(consensus, "commit", changed)


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")  # as of the directory's sync, after the rename


def exit_process_0(hosts: Hosts) -> Callable[[], None]:
    def exit_now() -> None:
        hosts.clients[0].close()
        os.rename(hosts.paths("a").checkpoints, hosts.paths("a").checkpoints + "-then")  # it removes nothing more
        raise SystemExit

    return exit_now


def bring_back(hosts: Hosts) -> None:
    os.rename(hosts.paths("a").checkpoints + "-then", hosts.paths("a").checkpoints)


# ---------------------------------------------------------------------------------------------- a save that may be


@pytest.mark.parametrize("processes", ["ab", "ba"])
def test_share_stays_where_process_0_exits_after_its_commit(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    change_commit(monkeypatch, after=exit_process_0(hosts))
    _, error = hosts.save()
    assert isinstance(error, CheckpointError)
    assert "process 0 (a, pid" in str(error)
    bring_back(hosts)
    assert_start_completes_share(hosts, processes)


def test_share_stays_where_the_commit_fails_after_its_rename(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    change_commit(monkeypatch, after=fail)
    assert [type(ended) for ended in hosts.save()] == [CheckpointError, CheckpointError]
    assert_start_completes_share(hosts)


def test_share_stays_where_a_manifest_cannot_be_examined(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failing stat after the commit."""
    stat, failing = os.stat, list[str]()

    def fail_once(path: Any, **named: Any) -> os.stat_result:
        if path in failing:
            failing.remove(path)
            fail()
        return stat(path, **named)

    def fail_next() -> None:
        failing.append(str(hosts.share("a") / MANIFEST))
        fail()

    monkeypatch.setattr(os, "stat", fail_once)
    change_commit(monkeypatch, after=fail_next)
    assert [type(ended) for ended in hosts.save()] == [CheckpointError, CheckpointError]
    assert failing == []
    assert_start_completes_share(hosts)


def test_share_stays_where_its_manifest_cannot_be_written(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Process 0 has committed, and removes older checkpoints next."""
    commit = DirectoryObjects.commit

    def full(store: DirectoryObjects, path: str, data: bytes) -> None:
        if store.where == str(hosts.share("b")):
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(store, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryObjects, "commit", full)
        first, second = hosts.save()
    assert isinstance(first, Manifest)
    assert isinstance(second, Manifest)
    assert first.root_digest == second.root_digest
    assert "No space left on device" in caplog.text
    assert not (hosts.share("b") / MANIFEST).exists()
    assert_start_completes_share(hosts)


def test_share_without_all_its_objects_is_never_completed(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    change_commit(monkeypatch, after=fail)
    hosts.save()
    next(path for path in (hosts.share("b") / "arrays/large").rglob("0") if path.is_file()).unlink()
    hosts.start("ab")
    assert not (hosts.share("b") / MANIFEST).exists()
    assert (hosts.share("b") / SHARE).exists()


# ---------------------------------------------------------------------------------------- the same step saved again


def test_share_stays_where_the_same_step_is_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host b has two processes: the second waits for the first, which waits for process 0."""
    hosts = Hosts(tmp_path, "abb")
    with monkeypatch.context() as patched:
        change_commit(patched, after=fail)
        hosts.save()
    errors = hosts.save()
    assert ["is complete: a checkpoint is never overwritten" in str(error) for error in errors] == [True] * 3, errors
    assert_start_completes_share(hosts)


def test_share_stays_where_process_0_cannot_save_again(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        change_commit(patched, after=fail)
        hosts.save()

    def begin(group: SaveGroup) -> None:
        if group.leads:
            abort_save(group, CheckpointError("the fence cannot be read"))

    errors = hosts.save(begin)
    assert ["the fence cannot be read" in str(error) for error in errors] == [True, True], errors
    assert_start_completes_share(hosts)


def test_share_that_is_not_committed_is_saved_again(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    change_commit(monkeypatch, before=exit_process_0(hosts))
    hosts.save()
    assert (hosts.share("b") / SHARE).exists()
    bring_back(hosts)
    monkeypatch.undo()
    assert [type(ended) for ended in hosts.save()] == [Manifest, Manifest]
    assert_complete(hosts)


# ---------------------------------------------------------------------------------------- a save that certainly is not


def test_share_is_removed_where_the_commit_is_rejected(hosts: Hosts) -> None:
    Fence(1, "here").sealed(2, "there", 5).write(hosts.paths("a").fence)
    assert [type(ended) for ended in hosts.save()] == [FenceRejectedError, FenceRejectedError]
    assert [hosts.share(host).exists() for host in "ab"] == [False, False]


def uncommitted(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """End process 0 right before its commit."""
    with monkeypatch.context() as patched:
        change_commit(patched, before=exit_process_0(hosts))
        hosts.save()
    assert (hosts.share("b") / SHARE).exists()


@pytest.mark.parametrize("processes", ["ab", "ba"])
def test_start_removes_a_share_without_a_commit(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, processes: str) -> None:
    uncommitted(hosts, monkeypatch)
    bring_back(hosts)
    assert hosts.start(processes) == [None, None]
    assert [path.name for path in Path(hosts.paths("b").checkpoints).iterdir()] == [".id"]


def test_start_without_the_host_of_process_0_removes_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifest may exist; so it may where another disk is mounted there."""
    uncommitted(hosts, monkeypatch)
    assert hosts.start("bc") == [None, None]
    assert (hosts.share("b") / SHARE).exists()
    Path(hosts.paths("a").checkpoints).mkdir()
    assert hosts.start("ab") == [None, None]
    assert (hosts.share("b") / SHARE).exists()


def test_start_of_a_standby_removes_no_share(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    uncommitted(hosts, monkeypatch)
    bring_back(hosts)
    assert hosts.start("ab", standby=True) == [None, None]
    assert (hosts.share("b") / SHARE).exists()


def test_start_removes_no_share_whose_process_0_may_run(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has recorded its end, and is still saving."""
    uncommitted(hosts, monkeypatch)
    bring_back(hosts)
    files = hosts.paths("a").attempt(1)
    Path(files.dir).mkdir()
    identity = records.this_process()
    status = records.Status(records.FAILED, 7, 0, heartbeat=time.time() - 3600, **identity.to_json())
    status.write(files.status())
    assert hosts.start("ab") == [None, None]
    assert (hosts.share("b") / SHARE).exists()
    ended = records.ProcessIdentity(identity.boot_id, identity.pid, identity.start_ticks - 1)
    records.Status(records.TRAINING, 7, 0, heartbeat=time.time(), **ended.to_json()).write(files.status())
    assert hosts.start("ab") == [None, None]
    assert not hosts.share("b").exists()


def test_start_removes_no_share_of_a_checkpoint_in_the_trash(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin may bring the checkpoint back."""
    change_commit(monkeypatch, after=fail)
    hosts.save()
    share = hosts.share("a")
    share.rename(share.with_name(f".trash-{NAME}"))
    assert hosts.start("ab") == [None, None]
    assert (hosts.share("b") / SHARE).exists()


# ------------------------------------------------------------------------------------------------------------ others


def test_failed_save_on_one_file_system_examines_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket that is repeated for minutes, and the other processes wait."""
    looks = list[str]()
    monkeypatch.setattr(consensus, "_may_have_manifest", looks.append)
    change_commit(monkeypatch, before=fail)
    errors = Hosts(tmp_path, "aa").save()
    assert ["Input/output error" in str(error) for error in errors] == [True, True], errors
    assert looks == []


def test_object_that_cannot_be_examined_is_not_absent(tmp_path: Path) -> None:
    store = DirectoryObjects(str(tmp_path))
    (tmp_path / "file").touch()
    (tmp_path / MANIFEST).symlink_to(MANIFEST)
    assert [store.exists("absent"), store.exists("file/absent"), store.exists("file")] == [False, False, True]
    with pytest.raises(OSError, match="symbolic links"):
        store.exists(MANIFEST)
    with pytest.raises(OSError, match="symbolic links"):
        store.commit(MANIFEST, b"{}")
    assert (tmp_path / MANIFEST).is_symlink()
