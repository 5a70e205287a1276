"""A standby attempt: preparation, refusals, and continuation as the run."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from midstream_core import records
from midstream_core.attempt import standby_lease
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt.standby import wait_on_standby
from midstream_engine.loop.requests import Known, Wanted
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.runtime.attempt_record import open_attempt
from support.engines.engine_process import train_all
from support.engines.standby_engine import Held
from support.module_time import replace_time
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn

TINY = ("--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "r")
FLAGS = ("--trainer.num_train_steps", "12", "--trainer.checkpointer.keep", "[{every: 4}]")


@pytest.fixture(scope="module")
def trained():
    """A root with run ``r``: 12 updates on 2 devices, checkpoints at 4, 8 and 12."""
    with tempfile.TemporaryDirectory(prefix="midstream-held-") as directory:
        root = Path(directory)
        codes, log = train_all(root, [(*TINY, *FLAGS)], devices=2)
        assert codes == [0], log
        yield root


def test_standby_rehearses_refuses_mismatch_and_continues_run(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start("--trainer.per_device_parallelism", "2") as engine:
        waiting = engine.until(held.is_in(records.WAITING))
        assert waiting.rehearsed_seconds > 0
        assert (waiting.epoch, waiting.step) == (0, 4), "it has no part in the run yet"
        assert not Path(held.paths.fence).exists()
        assert not Path(held.paths.lineage).exists()
        assert not Path(held.paths.attempt(2).metrics).exists()
        assert not Path(held.paths.config).exists()

        held.bring("step-8-a001")
        held.order(records.RESTORE, 2, "step-8-a001", epoch=3)
        assert "ownership 3" in engine.until(held.has_refused(2)).message
        held.order(records.RESTORE, 3, "step-8-a001")
        assert "the fence does not name two as owner" in engine.until(held.has_refused(3)).message
        held.order(records.SAVE, 4)
        assert "restore and stop only" in engine.until(held.has_refused(4)).message
        held.order(records.RESTORE, 5, "step-12-a001")
        assert "is no checkpoint" in engine.until(held.has_refused(5)).message
        records.Fence.read(held.source.fence).sealed(2, "two", 8).write(held.paths.fence)
        held.order(records.RESTORE, 6, "step-8-a001")
        code, log = engine.finish()
    assert code == 0, log
    status = held.status()
    assert status is not None
    assert (status.state, status.epoch, status.acknowledged, status.message) == ("finished", 2, 6, "")

    evidence = records.Restore.read(held.paths.attempt(2).restore)
    assert evidence.root_digest == evidence.expected_root_digest
    assert evidence.seconds["compile"] == 0
    assert evidence.batch_digest == evidence.recorded_batch_digest
    (entry,) = records.Lineage.read(held.paths.lineage).entries
    assert (entry.attempt, entry.epoch, entry.first_step, entry.checkpoint) == (2, 2, 8, "step-8-a001")
    ours = records.parse_metrics(Path(held.paths.attempt(2).metrics).read_text().splitlines())
    theirs = records.parse_metrics(Path(held.source.attempt(1).metrics).read_text().splitlines())
    assert [row["global_step"] for row in ours] == [8, 9, 10, 11], "what was rehearsed left no line"
    for mine, one in zip(ours, theirs[8:], strict=True):
        assert mine["batch_digest"] == one["batch_digest"]
        assert records.relative_difference(mine["train/loss"], one["train/loss"]) < 1e-4


THREADS = """
import atexit, threading
atexit.register(lambda: print("at the exit:", *sorted(each.name for each in threading.enumerate()), flush=True))
"""


def test_standby_that_fails_after_its_command_ends_its_reader(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(THREADS)
    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start(PYTHONPATH=str(tmp_path / "site")) as engine:
        engine.until(held.is_in(records.WAITING))
        Path(held.paths.config).mkdir()  # `run.yaml` cannot be written
        held.bring("step-8-a001")
        records.Fence.read(held.source.fence).sealed(2, "two", 8).write(held.paths.fence)
        held.order(records.RESTORE, 2, "step-8-a001")
        code, log = engine.finish()
    assert code == 1, log
    status = held.status()
    assert status is not None
    assert (status.state, status.acknowledged) == ("failed", 2), status.message
    (line,) = (line for line in log.splitlines() if line.startswith("at the exit:"))
    assert "MainThread" in line
    assert "arrival" not in line


def test_standby_stopped_leaves_no_trace(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start() as engine:
        engine.until(held.is_in(records.WAITING))
        held.order(records.STOP, 2)
        code, log = engine.finish()
    assert code == 0, log
    status = held.status()
    assert status is not None
    assert (status.state, status.acknowledged) == ("stopped", 2)
    for path in (held.paths.fence, held.paths.lineage, held.paths.config, held.paths.attempt(2).metrics):
        assert not Path(path).exists()


def test_standby_exits_when_run_goes_elsewhere(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start() as engine:
        engine.until(held.is_in(records.WAITING))
        records.Fence(3, "three", 8).write(held.paths.fence)
        code, log = engine.finish()
    assert code == records.EXIT_FENCED, log
    status = held.status()
    assert status is not None
    assert status.state == "failed"
    assert "passed to three (ownership 3)" in status.message


def test_standby_reports_different_losses_before_migration(trained: Path, tmp_path: Path) -> None:
    import json

    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    directory = Path(held.paths.checkpoint("step-4-a001"))
    train = json.loads((directory / records.TRAIN).read_text())
    train["reference_losses"]["losses"][0] *= 1.01
    write_train(directory, train)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start() as engine:
        code, log = engine.finish()
    assert code == 1, log
    status = held.status()
    assert status is not None
    assert "do not compute the same run" in status.message


def write_train(directory: Path, train: object) -> None:
    """Replace train.json, with a manifest that agrees: only the reference losses change, which no digest covers."""
    import hashlib
    import json

    data = json.dumps(train).encode()
    (directory / records.TRAIN).write_bytes(data)
    manifest = json.loads((directory / records.MANIFEST).read_text())
    for entry in manifest["objects"]:
        if entry["path"] == records.TRAIN:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest(), crc32c="")
    (directory / records.MANIFEST).write_text(json.dumps(manifest))


def test_standby_without_lease_exits_and_frees_devices(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-4-a001", *FLAGS)
    held.order(records.STANDBY, 1, "step-4-a001")
    with held.start(MIDSTREAM_STANDBY_SECONDS="1") as engine:
        code, log = engine.finish()
    status = held.status()
    assert status is not None
    assert (code, status.state, status.epoch) == (0, "stopped", 0), log
    assert "lease was not renewed" in status.message
    assert not Path(held.paths.lineage).exists()


@pytest.mark.parametrize("process", [0, 1])
def test_standby_processes_leave_together_without_a_lease(
    tmp_path: Path, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 has the lease; the others would wait for it in the next consensus."""
    offered = list[Known]()
    monkeypatch.setenv("MIDSTREAM_STANDBY_SECONDS", "0")
    monkeypatch.setattr(standby_lease, "POLL_INTERVAL", 0.0)

    def look(known: Known) -> Wanted:
        offered.append(known)
        assert len(offered) == 1
        return Wanted(facts=Known(due=True))

    files: Any = SimpleNamespace(lease=str(tmp_path / "lease"))
    attempt: Any = SimpleNamespace(files=files, epoch=2, processes=Processes(process, 2))
    status = StatusFile(str(tmp_path / "status.json"), run_id="r", attempt=1, epoch=0, num_train_steps=9)
    requests: Any = SimpleNamespace(look=look)
    assert wait_on_standby(attempt, requests, status) is None
    status.close()
    assert offered[0].due == (process == 0)
    assert "lease was not renewed" in status.value.message


def test_full_disk_ends_no_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = StatusFile(str(tmp_path / "status.json"), run_id="r", attempt=1, epoch=0, num_train_steps=9)
    commands = iter([records.Command(records.SAVE, sequence=1), records.Command(records.STOP, sequence=2)])

    def look(_known: Known) -> Wanted:
        command = next(commands)
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(status, "_write", lambda **_: (_ for _ in ()).throw(full))
        return Wanted(stop=command.action == records.STOP, command=command)

    attempt = open_attempt(str(tmp_path), "r", {})
    requests: Any = SimpleNamespace(look=look)
    assert wait_on_standby(attempt, requests, status) is None
    assert (status.value.rejected, status.value.acknowledged) == (1, 2)
    monkeypatch.undo()
    status.close()


def stale(*_: object) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


def test_standby_lease_expires_by_its_clock_unless_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    replace_time(monkeypatch, standby_lease, monotonic=lambda: now)
    path = tmp_path / "lease"
    found = standby_lease.Lease(str(path))
    assert found.seconds == 3600.0
    for _ in range(5):
        now += 3000.0
        records.write_bytes(str(path), b"")
        assert not found.over()
    now += 3599.0
    assert not found.over()
    now += 2.0
    assert found.over()
    assert found.over(), "the file is not read again so soon"
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stale)
        now += standby_lease.POLL_INTERVAL
        assert found.over(), "a disk that does not answer renews nothing, and is no error"
    records.write_bytes(str(path), b"")
    now += standby_lease.POLL_INTERVAL
    assert not found.over()
