"""Rows of ``metrics.jsonl`` from a trainer's rows: each step once, its learning rate beside its loss."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from midstream_host.driver.batch_tap import BatchTap
from midstream_host.driver.checkpoints.search import SearchError
from midstream_host.driver.metrics.metrics_reader import open_reader
from midstream_host.driver.metrics.rows import RowsOfPart
from midstream_host.driver.metrics_tail import MetricsTail


class Reader:
    """Returns these rows, once."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.parts = [RowsOfPart("metrics.csv", 1, list(rows))]
        self.state: dict[str, Any] = {}

    def poll(self) -> list[RowsOfPart]:
        parts, self.parts = self.parts, []
        return parts


def read_rows(path: str) -> list[dict[str, Any]]:
    return records.parse_metrics(Path(path).read_text().splitlines())


def tailed(path: Path, *rows: dict[str, Any], first: int = 0) -> list[dict[str, Any]]:
    tail = MetricsTail(Reader(*rows), str(path / "metrics.jsonl"), first=first)
    tail.poll()
    tail.close()
    timed = ("time", "throughput/duration")
    return [{name: row[name] for name in row if name not in timed} for row in read_rows(str(path / "metrics.jsonl"))]


def test_rows_name_the_start_and_no_metric_of_that_name_does(tmp_path: Path) -> None:
    row = {"global_step": 0, "train/loss": 3.0, "start_number": 7}
    assert tailed(tmp_path, row) == [{"global_step": 0, "train/loss": 3.0}], "an earlier fence: no number"
    path = str(tmp_path / "metrics.jsonl.2")
    tail = MetricsTail(Reader(row), path, first=0, start=2)
    tail.poll()
    tail.close()
    assert [each["start_number"] for each in read_rows(path)] == [2]


def test_rows_wait_for_room_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer may write to another disk, and trains on."""
    reader = Reader({"global_step": 0, "train/loss": 3.0})
    tail = MetricsTail(reader, str(tmp_path / "metrics.jsonl"), first=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "append_line", full)
        assert tail.poll() == 1
        tail.sync()
        assert "rows of metrics cannot be written: [Errno 28] No space left" in tail.problem
    assert read_rows(str(tmp_path / "metrics.jsonl")) == []
    reader.parts = [RowsOfPart("metrics.csv", 1, [{"global_step": 1, "train/loss": 2.0}])]
    assert tail.poll() == 1
    assert tail.problem == ""
    tail.close()
    assert [row["global_step"] for row in read_rows(str(tmp_path / "metrics.jsonl"))] == [0, 1]


def test_partial_last_row_of_an_earlier_driver_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"global_step": 0, "train/loss": 3.0}\n{"global_step": 1, "tr')
    assert [row["global_step"] for row in tailed(tmp_path, {"global_step": 1, "train/loss": 2.0}, first=1)] == [0, 1]


def test_learning_rate_that_is_logged_apart_joins_its_loss(tmp_path: Path) -> None:
    rate, loss = "optim/learning_rate", "train/loss"
    found = tailed(
        tmp_path,
        {"global_step": 0, rate: 0.1},
        {"global_step": 0, loss: 3.0},
        {"global_step": 1, rate: 0.2},
        {"global_step": 2, rate: 0.3},
        {"global_step": 2, loss: 2.0},
    )
    assert found == [{"global_step": 0, rate: 0.1, loss: 3.0}, {"global_step": 2, rate: 0.3, loss: 2.0}]


def test_rows_of_earlier_attempts_and_repeated_rows_are_left_out(tmp_path: Path) -> None:
    rows = [{"global_step": step, "train/loss": 3.0 - step} for step in (0, 1, 2, 3, 3, 2, 4)]
    assert [row["global_step"] for row in tailed(tmp_path, *rows, first=2)] == [2, 3, 4]


def test_evaluations_are_rows_of_their_own(tmp_path: Path) -> None:
    found = tailed(tmp_path, {"global_step": 0, "train/loss": 1.0}, {"global_step": 0, "eval/loss": 2.0})
    assert found == [{"global_step": 0, "train/loss": 1.0}, {"global_step": 0, "eval/loss": 2.0}]


def test_losses_that_are_not_finite_are_rows_too(tmp_path: Path) -> None:
    """A diverged run goes on counting its steps, and its rows show that it has diverged."""
    losses = ("2.5", "NaN", "Infinity", "NaN")
    (tmp_path / "log.jsonl").write_text(
        "".join(f'{{"step": {step}, "loss": {loss}}}\n' for step, loss in enumerate(losses))
    )
    tail = MetricsTail(open_reader("jsonl", str(tmp_path), "log.jsonl"), str(tmp_path / "metrics.jsonl"), first=0)
    tail.poll()
    tail.poll()
    tail.close()
    found = read_rows(str(tmp_path / "metrics.jsonl"))
    assert [(row["global_step"], row["train/loss"]) for row in found] == [(0, 2.5), (1, None), (2, None), (3, None)]
    assert tail.step == 4


@pytest.mark.parametrize("error", [SearchError("too many entries"), PermissionError(13, "Permission denied")])
def test_source_that_cannot_be_read_does_not_end_the_trainer(tmp_path: Path, error: Exception) -> None:
    class Unreadable(Reader):
        def poll(self) -> list[RowsOfPart]:
            raise error

    tail = MetricsTail(Unreadable(), str(tmp_path / "metrics.jsonl"), first=0)
    assert tail.poll() == 0
    tail.close()
    assert tail.problem.startswith("metrics cannot be read: ")


def test_digest_of_a_step_has_every_batch_before_its_loss(tmp_path: Path) -> None:
    """The tap writes while the source is read; ranks, and batches of gradient accumulation, make one digest."""
    tapped = tmp_path / "batches.jsonl"
    lines = [(0, 0, "a"), (0, 1, "b"), (0, 0, "c"), (0, 1, "d")]

    class Training(Reader):
        def poll(self) -> list[RowsOfPart]:
            with open(tapped, "a") as file:
                while lines:
                    step, rank, digest = lines.pop(0)
                    file.write(json.dumps({"step": step, "rank": rank, "digest": digest}) + "\n")
            return super().poll()

    reader = Training({"global_step": 0, "train/loss": 1.0})
    tail = MetricsTail(reader, str(tmp_path / "metrics.jsonl"), first=0, tap=BatchTap(str(tapped)))
    tail.poll()
    tail.close()
    both = [hashlib.sha256(text).hexdigest() for text in (b"ac", b"bd")]
    (row,) = read_rows(str(tmp_path / "metrics.jsonl"))
    assert row["batch_digest"] == hashlib.sha256("".join(both).encode()).hexdigest()


def test_rows_below_the_checkpoint_since_the_start_are_counted(tmp_path: Path) -> None:
    """They were dropped before anything judged them: a trainer that began again had a valid certificate."""
    file = tmp_path / "log.jsonl"
    before = time.time() - 100
    file.write_text("".join(json.dumps({"step": step, "loss": 1.0, "time": before}) + "\n" for step in range(400)))
    tail = MetricsTail(open_reader("jsonl", str(tmp_path), "log.jsonl"), str(tmp_path / "metrics.jsonl"), first=400)
    tail.pass_over()
    with file.open("a") as log:  # some write their history again: it was done before the start
        log.writelines(json.dumps({"step": step, "loss": 1.0, "time": before}) + "\n" for step in range(380, 400))
        log.write(json.dumps({"step": 400, "loss": 1.0, "time": time.time()}) + "\n")
    tail.poll()
    assert (tail.since_start.below, tail.since_start.first_row, tail.step) == (0, 400, 401)
    with file.open("a") as log:
        log.writelines(json.dumps({"step": step, "loss": 1.0, "time": time.time()}) + "\n" for step in (0, 1, 2))
    tail.poll()
    tail.poll()
    tail.close()
    assert (tail.since_start.below, tail.since_start.lowest) == (3, 0)
    assert [row["global_step"] for row in read_rows(str(tmp_path / "metrics.jsonl"))] == [400]


@pytest.mark.parametrize("clock", [lambda now: 0.25, lambda now: now % 1000, lambda now: now * 1e3])
def test_time_that_is_none_of_the_day_makes_no_row_history(tmp_path: Path, clock: Callable[[float], float]) -> None:
    """A column ``time`` with the seconds of a step was before the start: a trainer that began again was certified."""
    file = tmp_path / "log.jsonl"
    file.write_text("")
    tail = MetricsTail(open_reader("jsonl", str(tmp_path), "log.jsonl"), str(tmp_path / "metrics.jsonl"), first=400)
    tail.pass_over()
    with file.open("a") as log:
        for step in (0, 1, *range(400, 403)):
            log.write(json.dumps({"step": step, "loss": 1.0, "time": clock(time.time())}) + "\n")
    tail.poll()
    tail.poll()
    tail.close()
    assert (tail.since_start.below, tail.since_start.first_row) == (2, 0)
    rows = read_rows(str(tmp_path / "metrics.jsonl"))
    assert [row["global_step"] for row in rows] == [400, 401, 402]
    assert all(abs(row["time"] - time.time()) < 60 for row in rows)


def test_two_losses_of_one_step_are_named(tmp_path: Path) -> None:
    """Each process wrote to one file: the losses of both ends differed, and the order of the data was blamed."""
    tail = MetricsTail(open_reader("jsonl", str(tmp_path), "log.jsonl"), str(tmp_path / "metrics.jsonl"), first=0)
    tail.pass_over()
    with (tmp_path / "log.jsonl").open("a") as log:
        for step in range(100):
            log.write(json.dumps({"step": step, "loss": 1.0 + step}) + "\n")
        log.write(json.dumps({"step": 98, "loss": 99.0}) + "\n")  # it repeats its history
        log.write(json.dumps({"step": 101, "eval_loss": 1.0}) + "\n")
        tail.poll()
        assert not tail.conflict
        log.write(json.dumps({"step": 97, "loss": 7.5}) + "\n")
    while tail.poll():
        pass
    tail.poll()
    tail.close()
    assert tail.conflict.startswith("two rows of step 97 have the losses 98 and 7.5: comparisons of losses")
    assert [row["train/loss"] for row in read_rows(str(tmp_path / "metrics.jsonl")) if row["global_step"] == 97] == [98]


def test_counter_of_a_process_has_the_checkpoints_step_added(tmp_path: Path) -> None:
    """W&B's `_step` begins at 0 after a resume: step 800 was recorded as 400, with the loss of another step."""
    first = tmp_path / "first.jsonl"
    first.write_text("".join(json.dumps({"_step": step, "loss": 1.0}) + "\n" for step in range(400)))
    tail = MetricsTail(open_reader("jsonl", str(tmp_path), "*.jsonl"), str(tmp_path / "metrics.jsonl.rows"), first=400)
    tail.pass_over()
    lines = [json.dumps({"_step": step, "loss": float(step)}) + "\n" for step in range(500)]
    (tmp_path / "second.jsonl").write_text("".join(lines))
    tail.poll()
    tail.poll()
    tail.close()
    rows = read_rows(str(tmp_path / "metrics.jsonl.rows"))
    assert [(row["global_step"], row["train/loss"]) for row in rows] == [
        (400 + step, float(step)) for step in range(500)
    ]
    assert (tail.since_start.counted, tail.since_start.below) == ("_step", 0)
    assert "counted" not in rows[0]


def test_rows_that_are_read_together_without_a_time_have_no_pace(tmp_path: Path) -> None:
    """Each had the time of its reading: a step took microseconds."""
    reader = Reader(*({"global_step": step, "train/loss": 1.0} for step in range(5)))
    tail = MetricsTail(reader, str(tmp_path / "metrics.jsonl"), first=0)
    tail.poll()
    for step in (5, 6):
        reader.parts = [RowsOfPart("log", 1, [{"global_step": step, "train/loss": 1.0}])]
        tail.poll()
    reader.parts = [RowsOfPart("log", 1, [{"global_step": step, "train/loss": 1.0} for step in (7, 8)])]
    tail.poll()
    tail.close()
    paced = {row["global_step"] for row in read_rows(str(tmp_path / "metrics.jsonl")) if "throughput/duration" in row}
    assert paced == {6}, "alone in its poll, after one that was alone too"


def test_rows_of_an_older_process_are_not_an_adopted_ones(tmp_path: Path) -> None:
    """They are distinguished by their time, by the file's, or by steps that begin again, never by the step itself."""
    started = time.time() - 50
    rows = [{"step": step, "loss": 9.0, "time": started - 9} for step in range(5000)]
    rows += [{"step": step, "loss": 1.0, "time": started + 1} for step in range(3)]
    (tmp_path / "timed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def taken_over(pattern: str) -> list[tuple[int, float]]:
        path = str(tmp_path / "metrics.rows")
        Path(path).unlink(missing_ok=True)
        tail = MetricsTail(open_reader("jsonl", str(tmp_path), pattern), path, first=0)
        tail.take_over(started)
        tail.close()
        return [(row["global_step"], row["train/loss"]) for row in read_rows(path)]

    own = [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert taken_over("timed.jsonl") == own
    for row in rows:
        del row["time"]
    (tmp_path / "untimed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert taken_over("untimed.jsonl") == own
    (tmp_path / "older.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5000]))
    os.utime(tmp_path / "older.jsonl", (started - 9, started - 9))
    assert taken_over("older.jsonl") == []
