"""Attempts, epochs, fence and lineage: claims and refusals."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.attempt.errors import EngineError, FencedError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt import attempt_process
from midstream_engine.config import ConfigError, TrainLmConfig
from midstream_engine.loop.requests import CommandFile, Known, Requests
from midstream_engine.processes.rendezvous import ALONE
from midstream_engine.runtime import attempt_record as attempts
from midstream_engine.runtime.attempt_record import AttemptRecord, open_attempt
from midstream_engine.signals import Signals
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import MetricsRecorder, close_metrics
from support.paths import CONFIGS


def test_attempt_of_new_run_has_number_1_epoch_1_and_fence(tmp_path: Path) -> None:
    attempt = open_attempt(str(tmp_path), "r", {"MIDSTREAM_TARGET": "gpu"})
    assert (attempt.number, attempt.epoch, attempt.target, attempt.launched) == (1, 1, "gpu", False)
    assert records.Fence.read(attempt.paths.fence) == records.first_fence("gpu")


def test_attempts_started_together_get_different_numbers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: open_attempt(str(tmp_path), "r", {}).number, range(8)))
    assert sorted(numbers) == list(range(1, 9))


def test_attempt_takes_number_and_epoch_of_launcher(tmp_path: Path) -> None:
    said = {"MIDSTREAM_ATTEMPT": "7", "MIDSTREAM_EPOCH": "3", "MIDSTREAM_TARGET": "tpu"}
    attempt = open_attempt(str(tmp_path), "r", said)
    assert (attempt.number, attempt.epoch, attempt.launched) == (7, 3, True)
    assert open_attempt(str(tmp_path), "r", {}).epoch == 3


@pytest.mark.parametrize(("action", "epoch"), [(records.STANDBY, 0), (records.REPLAY, 0), (records.RESTORE, 3)])
def test_standby_status_has_no_epoch_from_the_start(tmp_path: Path, action: str, epoch: int) -> None:
    """The status of an attempt killed at its start must not make its host the run's owner."""
    paths = records.RunPaths(str(tmp_path), "r")
    Path(paths.attempt(7).dir).mkdir(parents=True)
    records.Command(action, epoch=3, checkpoint="step-4-a001", root_digest="0" * 64, step=4).write(
        paths.attempt(7).command_file
    )
    attempt = open_attempt(str(tmp_path), "r", {"MIDSTREAM_ATTEMPT": "7", "MIDSTREAM_EPOCH": "3"})
    assert (attempt.epoch, attempt.first_epoch) == (3, epoch)


def test_attempt_refuses_older_epoch_and_invalid_number(tmp_path: Path) -> None:
    paths = open_attempt(str(tmp_path), "r", {}).paths
    records.first_fence("a").sealed(2, "b", 40).write(paths.fence)
    with pytest.raises(FencedError, match=r"belongs to b \(ownership 2, sealed at step 40\)"):
        open_attempt(str(tmp_path), "r", {"MIDSTREAM_EPOCH": "1"})
    with pytest.raises(EngineError, match="MIDSTREAM_ATTEMPT='x'"):
        open_attempt(str(tmp_path), "r", {"MIDSTREAM_ATTEMPT": "x"})
    with pytest.raises(EngineError, match="run id"):
        open_attempt(str(tmp_path), "../r", {})


@pytest.mark.parametrize("state", [records.COMPILING, records.TRAINING])
def test_attempt_that_fails_before_it_trains_restores_run_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Start the next attempt without its flags, which may be the reason."""
    given = CONFIGS / "gpt2_tiny.yaml"
    paths = open_attempt(str(tmp_path), "r", {}).paths
    Path(paths.config).write_bytes(given.read_bytes())

    def fail(config: TrainLmConfig, root: str, attempt: AttemptRecord, status: StatusFile, signals: Signals) -> str:
        assert "train_batch_size: 7\n" in Path(paths.config).read_text(), (
            "a run that trains has the config that it uses"
        )
        status.update(state=state)
        raise ConfigError("the batch does not divide")

    monkeypatch.setattr(attempt_process, "_import_run", lambda: fail)
    arguments = ["--config_path", str(given), "--trainer.id", "r", "--trainer.root", str(tmp_path)]
    code = attempt_process.run_process([*arguments, "--trainer.train_batch_size", "7"], Signals())
    assert code == records.EXIT_CONFIG
    unchanged = Path(paths.config).read_bytes() == given.read_bytes()
    assert unchanged == (state == records.COMPILING)


@pytest.mark.parametrize("unwritable", ["status", "config"])
def test_exit_code_is_the_failures_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritable: str
) -> None:
    """Directories in the places of the files stand for the full disk."""
    paths = open_attempt(str(tmp_path), "r", {}).paths
    Path(paths.config).write_bytes(b"# of an earlier attempt\n")

    def fail(config: TrainLmConfig, root: str, attempt: AttemptRecord, status: StatusFile, signals: Signals) -> str:
        path = Path(attempt.files.status() if unwritable == "status" else paths.config)
        path.unlink()
        path.mkdir()
        raise FencedError("the run belongs to another host")

    monkeypatch.setattr(attempt_process, "_import_run", lambda: fail)
    arguments = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "r"]
    code = attempt_process.run_process([*arguments, "--trainer.root", str(tmp_path)], Signals())
    assert code == records.EXIT_FENCED
    if unwritable == "config":
        status = records.Status.read(paths.attempt(2).status())
        assert (status.state, status.message) == ("failed", "the run belongs to another host")


@pytest.mark.parametrize("unwritable", ["stderr", "stderr and status"])
def test_refusal_is_in_the_status_where_it_cannot_be_printed(tmp_path: Path, unwritable: str) -> None:
    """The launcher reads the status; stderr is the log, on the same disk."""
    files = records.RunPaths(str(tmp_path), "r").attempt(1)
    Path(files.dir if unwritable == "stderr" else files.status()).mkdir(parents=True)
    command = [sys.executable, "-m", "midstream_engine.train", "--config_path", str(CONFIGS / "gpt2_tiny.yaml")]
    with open("/dev/full", "w") as full:
        code = subprocess.call(
            [*command, "--trainer.id", "r", "--trainer.no_such_key", "1"],
            env={**os.environ, "MIDSTREAM_ROOT": str(tmp_path), "MIDSTREAM_ATTEMPT": "1"},
            stderr=full,
        )
    if unwritable == "stderr":
        assert "no_such_key" in records.Status.read(files.status()).message
    assert code == records.EXIT_CONFIG


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_help_on_a_full_disk_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "midstream_engine.train", "--help"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == records.EXIT_FAILED
    assert done.stderr == "midstream: the output cannot be written: No space left on device\n"


def test_lineage_has_one_entry_and_end_per_attempt(tmp_path: Path) -> None:
    for last in (10, 20):
        attempt = open_attempt(str(tmp_path), "r", {"MIDSTREAM_TARGET": "t"})
        entry = attempts.lineage_entry(
            attempt,
            devices=[{"kind": "cpu"}] * 2,
            first_step=last - 10,
            checkpoint=None,
            root_digest=None,
            migration="m",
        )
        attempts.record_start(attempt, entry)
        attempts.record_end(attempt, last)
    lineage = records.Lineage.read(attempt.paths.lineage)
    assert [(e.attempt, e.first_step, e.last_step, e.devices) for e in lineage.entries] == [
        (1, 0, 10, 2),
        (2, 10, 20, 2),
    ]


def test_commands_are_acknowledged_once_and_none_is_lost(tmp_path: Path) -> None:
    path, signals = str(tmp_path / "command.json"), Signals()
    requests = Requests(signals, CommandFile(path))
    assert requests.look() == requests.look()
    signals.saves += 2
    assert requests.look().save
    assert not requests.look().save
    signals.saves += 1
    records.Command(records.SAVE, sequence=1).write(path)
    wanted = requests.look()
    assert wanted.save
    assert wanted.command is not None
    assert requests.look().command is None
    records.Command(records.STOP, sequence=2, epoch=2).write(path)
    wanted = requests.look()
    assert wanted.stop
    assert wanted.command == records.Command(records.STOP, sequence=2, epoch=2)
    assert not requests.look().stop


def test_command_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, where a file that another host has replaced cannot be read any more."""
    path = str(tmp_path / "command.json")
    requests = Requests(Signals(), CommandFile(path))
    records.Command(records.SAVE, sequence=1).write(path)

    def stale(_path: str) -> records.Command:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(records.Command, "read", stale)
        assert not requests.look().save
        assert not requests.look().save
        with pytest.raises(OSError, match="Stale file handle"):
            CommandFile(path)  # an attempt does not start without its command
    assert caplog.text.count("Stale file handle") == 1
    assert requests.look().save


def test_status_of_a_process_that_exits_is_not_changed(tmp_path: Path) -> None:
    """A signal ends the process on a thread, while the main thread compiles, restores and begins to train."""
    path = str(tmp_path / "status.json")
    status = StatusFile(path, run_id="r", attempt=1, epoch=1, num_train_steps=9)
    status.update(state=records.COMPILING)
    code = attempt_process._record_signal(status, ALONE, "SIGTERM", False)
    for state in (records.RESTORING, records.TRAINING, records.FAILED):
        status.update(state=state, message="of the main thread")
    status.close()
    found = records.Status.read(path)
    assert (code, found.state) == (records.EXIT_DONE, records.STOPPED)
    assert found.message == "stopped by SIGTERM while compiling: there was no update to save"


def test_training_does_not_wait_for_a_slow_disk_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = StatusFile(str(tmp_path / "status.json"), run_id="r", attempt=1, epoch=1, num_train_steps=9)
    writing, go_on, write = threading.Event(), threading.Event(), records.Status.write

    def slow(record: records.Status, path: str, *, durable: bool = True) -> None:
        writing.set()
        assert go_on.wait(60)
        write(record, path, durable=durable)

    monkeypatch.setattr(records.Status, "write", slow)
    saving = threading.Thread(target=status.try_write)
    saving.start()
    assert writing.wait(60)
    step = threading.Thread(target=status.update, kwargs={"step": 3}, daemon=True)
    step.start()
    step.join(10)
    assert status.value.step == 3
    go_on.set()
    saving.join(60)
    status.write()
    status.close()
    assert records.Status.read(str(tmp_path / "status.json")).step == 3


def test_second_interrupt_does_not_change_a_recorded_end(tmp_path: Path) -> None:
    path = str(tmp_path / "status.json")
    status = StatusFile(path, run_id="r", attempt=1, epoch=1, num_train_steps=9)
    status.update(state=records.STOPPED)
    assert attempt_process._record_signal(status, ALONE, "SIGINT", True) == records.EXIT_DONE
    status.close()
    assert (records.Status.read(path).state, records.Status.read(path).message) == (records.STOPPED, "")


def test_full_disk_at_the_end_is_no_failure_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = open_attempt(str(tmp_path), "r", {})
    entry = attempts.lineage_entry(attempt, devices=[], first_step=0, checkpoint=None, root_digest=None, migration="")
    attempts.record_start(attempt, entry)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records.Lineage, "write", full)
    attempts.record_end(attempt, 7)
    assert "end at step 7 is not in the lineage: [Errno 28] No space left on device" in caplog.text


def test_metrics_on_a_full_disk_hide_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    def end_of_training() -> None:
        metrics = MetricsRecorder(MetricsFile("/dev/full"))
        try:
            metrics.write({"global_step": 1})
            raise FencedError("the run belongs to another host")
        finally:
            close_metrics(metrics)

    with pytest.raises(FencedError):
        end_of_training()
    assert "the last rows of metrics are missing: " in caplog.text


def test_initial_command_is_not_executed_again(tmp_path: Path) -> None:
    path = str(tmp_path / "command.json")
    records.Command(records.RESTORE, checkpoint="step-1-a001", sequence=4).write(path)
    requests = Requests(Signals(), CommandFile(path))
    assert requests.look().command is None
    records.Command(records.SAVE, sequence=5).write(path)
    assert requests.look().save


def test_agreement_merges_facts_and_requests(tmp_path: Path) -> None:
    requests = Requests(Signals(), CommandFile(str(tmp_path / "command.json")))
    known = Known(epoch=3, due=True, busy=True, failed=1)
    assert requests.look(known).facts == known
    assert requests.look().facts == Known()
