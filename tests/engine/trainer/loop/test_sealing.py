"""A run is sealed on all processes of an attempt, or on none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.attempt.save_fence import FenceUnreadableError
from midstream_core.records import Command, Fence
from midstream_engine.loop import sealing
from midstream_engine.processes.coordinator_client import CoordinatorClient
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.processes.shared_file_systems import SharedFileSystems
from support.checkpoints.spread_hosts import Hosts

COMMAND = Command(records.STOP, epoch=2, owner="b", sequence=5)
STEP = 7


class Sealing(Hosts):
    """Two hosts with a fence each; ``damaged`` ones cannot be read."""

    def __init__(self, root: Path, damaged: str) -> None:
        super().__init__(root)
        for host in "ab":
            Fence(1, "a").write(self.paths(host).fence)
            if host in damaged:
                Path(self.paths(host).fence).write_text("{")

    def seal(self) -> list[Fence | BaseException]:
        def work(client: CoordinatorClient, _systems: SharedFileSystems) -> Fence | BaseException:
            host = "ab"[client.process]
            processes = Processes(client.process, 2, host, client)
            return sealing.seal_together(self.paths(host), COMMAND, STEP, processes)

        return self.together("ab", work)


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_processes_wait_for_the_one_that_cannot_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    hosts, tries, seal = Sealing(tmp_path, damaged), 0, sealing.seal

    def count(paths: records.RunPaths, *, epoch: int, owner: str, step: int, start: int) -> Fence:
        nonlocal tries
        if paths == hosts.paths(damaged):
            tries += 1
            if tries == 3:
                Fence(1, "a").write(paths.fence)
        return seal(paths, epoch=epoch, owner=owner, step=step, start=start)

    monkeypatch.setattr(sealing, "RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(sealing, "seal", count)
    assert [isinstance(one, Fence) for one in hosts.seal()] == [True, True]
    assert tries == 3
    for host in "ab":
        fence = Fence.read(hosts.paths(host).fence)
        assert (fence.epoch, fence.owner, fence.sealed_step) == (2, "b", STEP)


def test_no_process_seals_if_none_can(tmp_path: Path) -> None:
    hosts = Sealing(tmp_path, "ab")
    results = hosts.seal()
    assert [type(one) for one in results] == [FenceUnreadableError] * 2, results


def test_full_disk_leaves_run_unsealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Sealing(tmp_path, "").paths("a")

    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Fence, "write", full)
    with pytest.raises(FenceUnreadableError, match=r"fence\.json: not sealed: .*No space left"):
        sealing.seal_together(paths, COMMAND, STEP, ALONE)
    assert Fence.read(paths.fence) == Fence(1, "a")


def test_error_after_the_write_leaves_run_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, write = Sealing(tmp_path, "").paths("a"), Fence.write

    def late(fence: Fence, path: str) -> None:
        write(fence, path)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Fence, "write", late)
    assert sealing.seal_together(paths, COMMAND, STEP, ALONE).sealed_step == STEP
