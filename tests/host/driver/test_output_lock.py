"""Lock on a trainer's output: of one run at a time, and no obstacle where a disk has no locks."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.driver import output_lock
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError
from midstream_host.driver.output_lock import lock_output
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile, World
from midstream_host.driver.trainer_setup import Node, TrainerSetup


def place(root: Path, run_id: str) -> AttemptPlace:
    return AttemptPlace(records.RunPaths(str(root / "root"), run_id), 1, 1, "here", "here")


@pytest.fixture
def setup(tmp_path: Path) -> TrainerSetup:
    run = RunFile(
        trainer="script", command=["train"], resume=["train"], checkpoints=Checkpoints("glob"), metrics=Metrics("csv")
    )
    return TrainerSetup(run, World(), Node(), "python", str(tmp_path / "work"), "")


def test_output_belongs_to_one_run_at_a_time(tmp_path: Path, setup: TrainerSetup) -> None:
    descriptor = lock_output(place(tmp_path, "first"), setup)
    assert descriptor is not None
    assert lock_output(place(tmp_path, "first"), setup) is None
    with pytest.raises(EndedEarlyError, match="out: run first trains there already"):
        lock_output(place(tmp_path, "second"), setup)
    os.close(descriptor)  # as a killed process does
    deadline = time.monotonic() + 60
    while True:  # a child that another thread starts right now has the lock until it executes its program
        try:
            second = lock_output(place(tmp_path, "second"), setup)
            break
        except EndedEarlyError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert second is not None
    os.close(second)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_disk_without_locks_is_no_obstacle(
    tmp_path: Path, setup: TrainerSetup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Lustre without the mount option `flock`, and NFS without its lock service: no run could start there."""

    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert lock_output(place(tmp_path, "first"), setup) is None
    assert f"out: whether another run writes there is not known: {os.strerror(code)}" in capsys.readouterr().out


def test_full_disk_is_no_obstacle(tmp_path: Path, setup: TrainerSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(output_lock.os, "write", full)
        descriptor = lock_output(place(tmp_path, "first"), setup)
    assert descriptor is not None
    with pytest.raises(EndedEarlyError, match="out: another run trains there already"):
        lock_output(place(tmp_path, "second"), setup)
    os.close(descriptor)
