"""Times of runs' processes, read from run directories."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import run_times
from support.run_directory import RunDirectory

ENDED = records.ProcessIdentity("another boot", 1, 1)


def write_rows(run: RunDirectory, attempt: int, *times: float, duration: float = 2.0) -> None:
    rows = (
        {"global_step": step, "train/loss": 1.0, "time": at, "throughput/duration": duration}
        for step, at in enumerate(times)
    )
    run.text(attempt, "".join(json.dumps(row) + "\n" for row in rows))


def launch(run: RunDirectory, attempt: int, at: float, process: records.ProcessIdentity = ENDED) -> None:
    path = run.attempt(attempt).launched()
    process.write(path, durable=False)
    os.utime(path, (at, at))


def only(root: Path, since: float = 0.0) -> run_times.ProcessTimes:
    (found,) = run_times.read(str(root), since).processes
    return found


def test_run_times_of_an_exited_process(tmp_path: Path) -> None:
    run, now = RunDirectory(tmp_path), time.time()
    launch(run, 1, now - 1000)
    run.status(1, records.STOPPED, 3, ENDED)
    records.ProcessExit(0, 0, now - 100).write(run.attempt(1).exit(), durable=False)
    write_rows(run, 1, now - 800, now - 500, now - 200)
    found = only(tmp_path)
    assert found.launched
    assert not found.running
    assert found.started == pytest.approx(now - 1000, abs=0.01)
    assert (found.ended, found.first_step, found.last_step) == (now - 100, now - 802, now - 200)
    assert run_times.read(str(tmp_path), now - 50).processes == []  # ended before the period


def test_run_times_of_a_running_process_have_no_end(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    launch(run, 1, time.time() - 10, records.this_process())
    found = only(tmp_path)
    assert found.running
    assert found.ended is None
    assert found.first_step is None


def test_run_times_of_copied_records_are_not_launched_here(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.status(1, records.STOPPED, 3, ENDED)
    write_rows(run, 1, 1000.0, 2000.0)
    found = only(tmp_path)
    assert not found.launched
    assert found.started is None
    assert (found.first_step, found.last_step) == (998.0, 2000.0)


def test_run_times_name_records_that_cannot_be_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    launch(run, 1, 5.0)
    Path(run.attempt(1).status()).write_text("{")
    launch(run, 2, 5.0, records.this_process())
    found = run_times.read(str(tmp_path), 0.0)
    assert [each.attempt for each in found.processes] == [2]
    assert len(found.unreadable) == 1
    assert "run attempt 1" in found.unreadable[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json\n",
        '{"global_step": 1, "train/loss": 2, "time": "soon"}\n',
        '{"time": NaN, "train/loss": 1}\n',
        "[]\n",
    ],
)
def test_step_times_are_unknown_without_a_row_that_has_a_time(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert run_times.step_times(str(tmp_path / "metrics.jsonl")) == (None, None)


def test_step_times_of_a_long_file_and_a_partial_last_row(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_rows(run, 1, *(float(100 + step) for step in range(20_000)))
    run.text(1, '{"global_step": 20000, "train/loss": 1.0, "ti')
    assert run_times.step_times(run.attempt(1).metrics) == (98.0, 20_099.0)


def test_boot_time_of_this_machine_is_in_the_past() -> None:
    booted = run_times.booted()
    assert booted is None or 0 < booted < time.time()
    assert run_times.booted("/nonexistent") is None
