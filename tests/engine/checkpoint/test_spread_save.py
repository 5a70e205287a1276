"""A save of two processes without a shared file system, of which one fails around the commit."""

from __future__ import annotations

import dataclasses
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.format.boxes import full_box
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.save_fence import FenceRejectedError
from midstream_engine.checkpoint.saving import consensus
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save_group import SaveGroup
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.processes.coordinator_client import CoordinatorClient, connect_to_coordinator
from midstream_engine.processes.shared_file_systems import SharedFileSystems
from midstream_engine.records import MANIFEST, Fence, Manifest, RunPaths
from support.checkpoints.checkpoint_states import PROVENANCE, STATE
from support.loopback import free_port

NAME = "step-7-a001"
SHAPE = (512, 2048)


class Hosts:
    """Two hosts, each with a process (a thread here) that has one array completely."""

    def __init__(self, root: Path) -> None:
        self.paths = [RunPaths(str(root / host), "run") for host in "ab"]
        for paths in self.paths:
            Path(paths.dir).mkdir(parents=True)
        self.clients: dict[int, CoordinatorClient] = {}
        self.ended: dict[int, Manifest | BaseException] = {}
        self._address = f"127.0.0.1:{free_port()}"

    def save(self) -> list[Manifest | BaseException]:
        """Save on both; return the manifest or the error of each."""
        for work in (self._connect, self._save):
            threads = [threading.Thread(target=work, args=(process,)) for process in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        for client in self.clients.values():
            client.close()
        return [self.ended[0], self.ended[1]]

    def share(self, process: int) -> Path:
        return Path(self.paths[process].checkpoint(NAME))

    def _connect(self, process: int) -> None:
        self.clients[process], _ = connect_to_coordinator(
            self._address, process, 2, host="ab"[process], token="", join_timeout=60, heartbeat_timeout=60, welcome=dict
        )

    def _save(self, process: int) -> None:
        paths, box = self.paths[process], full_box(SHAPE)
        values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
        small, short = np.arange(3, dtype=np.float32), full_box((3,))
        arrays = [
            HostArray("large", ("mlp", "embed"), SHAPE, "float32", [(box, values)], {0: [box], 1: [box]}),
            HostArray("small", ("embed",), (3,), "float32", [(short, small)], {0: [short], 1: [short]}),
        ]
        systems = SharedFileSystems(process, (0, 1), ("a", "b"), tuple(paths.dir for paths in self.paths))
        group = SaveGroup(self.clients[process], 1, systems, timeout=60)
        document = train_document(STATE, PROVENANCE, None)
        try:
            self.ended[process] = consensus.finish_with_consensus(
                paths, paths.checkpoint(NAME), arrays, document, group, step=7, attempt=1, epoch=1
            )
        except BaseException as error:  # noqa: BLE001 (returned by `save`)
            self.ended[process] = error


def assert_share_is_complete(hosts: Hosts) -> None:
    """Assert that the share of the second host has all that the manifest of the first says."""
    manifest = read_manifest(str(hosts.share(0)))
    assert [entry.host for entry in manifest.spread_hosts] == ["a", "b"]
    dataclasses.replace(manifest, host="b").write(str(hosts.share(1) / MANIFEST))  # as the next start does
    for process in (0, 1):
        report = verify_checkpoint(str(hosts.share(process)), deep=True)
        assert (report.flaws, report.unlisted) == ([], [])


def after_commit(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    commit = consensus.commit

    def commit_and(*arguments: Any, **named: Any) -> Manifest:
        manifest = commit(*arguments, **named)
        then()
        return manifest

    monkeypatch.setattr(consensus, "commit", commit_and)


def test_share_stays_where_process_0_exits_after_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(tmp_path)

    def exit_now() -> None:
        hosts.clients[0].close()
        raise SystemExit

    after_commit(monkeypatch, exit_now)
    _, error = hosts.save()
    assert isinstance(error, CheckpointError)
    assert "process 0 (a, pid" in str(error)
    assert_share_is_complete(hosts)


def test_share_stays_where_the_commit_fails_after_its_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(tmp_path)

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")  # as of the directory's sync

    after_commit(monkeypatch, fail)
    assert [type(ended) for ended in hosts.save()] == [CheckpointError, CheckpointError]
    assert_share_is_complete(hosts)


def test_share_stays_where_its_manifest_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Process 0 has committed, and removes older checkpoints next."""
    hosts, commit = Hosts(tmp_path), DirectoryObjects.commit

    def full(store: DirectoryObjects, path: str, data: bytes) -> None:
        if store.where == str(hosts.share(1)):
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(store, path, data)

    monkeypatch.setattr(DirectoryObjects, "commit", full)
    first, second = hosts.save()
    assert isinstance(first, Manifest)
    assert isinstance(second, Manifest)
    assert first.root_digest == second.root_digest
    assert "No space left on device" in caplog.text
    assert not (hosts.share(1) / MANIFEST).exists()
    assert_share_is_complete(hosts)


def test_share_is_removed_where_the_commit_is_rejected(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path)
    Fence(1, "here").sealed(2, "there", 5).write(hosts.paths[0].fence)
    assert [type(ended) for ended in hosts.save()] == [FenceRejectedError, FenceRejectedError]
    assert [hosts.share(process).exists() for process in (0, 1)] == [False, False]
