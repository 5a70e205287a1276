"""Trackers: the values they get, and their isolation from training."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from midstream_engine.config import TensorboardConfig, TrackerConfig, WandbConfig
from midstream_engine.tracking import trackers as module
from midstream_engine.tracking.background_tracker import BackgroundTracker
from midstream_engine.tracking.run_facts import RunFacts
from midstream_engine.tracking.trackers import start_recorder
from midstream_engine.tracking.wandb import code_files, dump_directory
from support.engines.engine_runs import held
from support.tracking import wandb_files
from support.tracking.event_files import scalars

ROWS = [{"global_step": step, "train/loss": 5.0 - step, "batch_digest": "ab", "time": 1.5} for step in range(3)]


def facts(tmp_path: Path, attempt: int = 1, first_step: int = 0) -> RunFacts:
    return RunFacts("r", attempt, first_step, str(tmp_path / "attempt"), {"trainer": {"seed": 0}})


def record(tmp_path: Path, configs: list[TrackerConfig], rows: list[dict[str, Any]] = ROWS, **about: Any) -> None:
    process = about.pop("process", 0)
    recorder = start_recorder(str(tmp_path / "metrics.jsonl"), configs, facts(tmp_path, **about), process=process)
    for row in rows:
        recorder.write(row)
    recorder.close()


def written(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_reads_back_logged_values(tmp_path: Path) -> None:
    config = TensorboardConfig(logdir=str(tmp_path / "logs"))
    record(tmp_path, [config])
    record(tmp_path, [config], [{"global_step": 3, "train/loss": 0.5}], attempt=2, first_step=3)
    found = scalars(tmp_path / "logs" / "r")
    assert [found["train/loss", step] for step in range(4)] == [5.0, 4.0, 3.0, 0.5]
    assert not [tag for tag, _ in found if tag in ("global_step", "batch_digest")]
    assert [row["global_step"] for row in written(tmp_path)] == [0, 1, 2, 3]


def test_wandb_offline_keeps_metrics_code_and_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first process writes. WANDB_* of the environment belong to the user."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    code = tmp_path / "code"
    code.mkdir()
    (code / "my_program.py").write_text("print(1)\n")
    config = WandbConfig(project="p", mode="offline", save_code=str(code), tags=["mine"])
    record(tmp_path, [config], process=1)
    assert not (tmp_path / "attempt").exists()
    record(tmp_path, [config])
    file = offline_file(tmp_path)
    assert file.name == "run-r.wandb"
    held(file, b"train/loss", b"my_program.py", b"mine", b"global_step")
    assert len(written(tmp_path)) == 6


def offline_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "attempt" / "wandb").glob("offline-run-*/*.wandb")
    return file


def test_wandb_step_is_the_training_step_after_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = WandbConfig(project="p", mode="offline", save_code=False)
    later = [{"global_step": step, "train/loss": 1.0} for step in (103, 104, 105)]
    record(tmp_path, [config], later, attempt=2, first_step=103)
    file = offline_file(tmp_path)
    until(lambda: len(wandb_files.rows(file)) == 3)
    assert [(row["_step"], row["global_step"], row["train/loss"]) for row in wandb_files.rows(file)] == [
        (103, 103, 1.0), (104, 104, 1.0), (105, 105, 1.0),
    ]  # fmt: skip


KILLED = """
import sys, time
from midstream_engine.config import WandbConfig
from midstream_engine.tracking.run_facts import RunFacts
from midstream_engine.tracking.trackers import start_recorder
config = WandbConfig(project="p", mode="offline", save_code=False)
recorder = start_recorder(sys.argv[1] + "/metrics.jsonl", [config], RunFacts("r", 1, 0, sys.argv[1] + "/attempt", {}),
                          process=0)
for step in range(163):
    recorder.write({"global_step": step, "train/loss": 1.0})
time.sleep(600)
"""


def test_wandb_offline_file_of_killed_engine_has_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without W&B's own interval, after which it writes what it buffers."""
    monkeypatch.setenv("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "3600")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # W&B's process of this process

    def complete() -> bool:
        files = list((tmp_path / "attempt" / "wandb").glob("offline-run-*/*.wandb"))
        return len(files) == 1 and len(wandb_files.rows(files[0])) == 163

    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)]) as engine:
        try:
            until(complete)
        finally:
            engine.kill()
    assert engine.returncode == -9
    assert [row["_step"] for row in wandb_files.rows(offline_file(tmp_path))] == list(range(163))


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_wandb_offline_keeps_xla_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path / 'dumps'} --xla_dump_hlo_pass_re=.*")
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "module_0001.txt").write_text("HloModule jit_step")
    config = WandbConfig(project="p", mode="offline", save_code=False, save_xla_dumps=True)
    with caplog.at_level(logging.WARNING):
        record(tmp_path, [config])
    assert "failed" not in caplog.text
    held(offline_file(tmp_path), b"xla-r", b"module_0001.txt")


class Recording:
    """A tracker that records calls, and fails or waits at a given step."""

    def __init__(self, fail_at: int | None = None, wait: threading.Event | None = None) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.finished = False
        self._fail_at, self._wait = fail_at, wait

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._wait is not None:
            self._wait.wait(30)
        if step == self._fail_at:
            raise SystemExit("no\nnetwork")
        self.seen.append((step, dict(metrics)))

    def finish(self) -> None:
        self.finished = True


def test_tracker_failure_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    inner = Recording(fail_at=1)
    tracker = BackgroundTracker("t", lambda: inner)
    with caplog.at_level(logging.WARNING):
        for row in ROWS:
            tracker.log(row)
        tracker.finish()
    assert [record.getMessage() for record in caplog.records] == [
        "tracker t failed, metrics go to metrics.jsonl alone: SystemExit: no network"
    ]
    assert [step for step, _ in inner.seen] == [0]


def test_tracker_that_cannot_start_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Recording:
        raise OSError("disk full")

    tracker = BackgroundTracker("t", make)
    tracker.finish()
    tracker.log(ROWS[0])
    assert "disk full" in caplog.text
    assert len(caplog.records) == 1


def test_tracker_that_hangs_blocks_neither_training_nor_exit(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    tracker = BackgroundTracker("t", lambda: Recording(wait=release), waiting=2, patience=0.1)
    for row in ROWS * 4:
        tracker.log(row)
    tracker.finish()
    release.set()
    assert "too slow" in caplog.text
    assert re.search(r"does not accept its rows|did not close within", caplog.text)
    assert len([record for record in caplog.records if "too slow" in record.getMessage()]) == 1


def test_trackers_get_numbers_of_every_row() -> None:
    inner = Recording()
    tracker = BackgroundTracker("t", lambda: inner)
    for row in ROWS:
        tracker.log(row)
    tracker.finish()
    assert inner.seen == [(step, {"train/loss": 5.0 - step, "time": 1.5}) for step in range(3)]
    assert inner.finished


def test_tracker_missing_package_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    record(tmp_path, [WandbConfig(), TensorboardConfig()])
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "pip install tensorboardX" in caplog.text
    assert len(written(tmp_path)) == 3


def test_wandb_code_outside_a_repository_skips_hidden_files(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "c.yaml", ".hidden/d.py", "deep/e.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert code_files(str(tmp_path)) == ["a.py", "c.yaml", "deep/e.sh"]


def test_xla_dump_directory_is_read_from_flags() -> None:
    assert dump_directory("--a=b --xla_dump_to=/tmp/d --xla_dump_hlo_pass_re=.*") == "/tmp/d"
    assert dump_directory("--a=b") is None
