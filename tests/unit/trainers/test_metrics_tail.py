"""Rows of ``metrics.jsonl`` from a trainer's rows: each step once, its learning rate beside its loss."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from midstream_engine import records
from midstream_engine.foreign.batch_tap import BatchTap
from midstream_engine.foreign.checkpoints.search import SearchError
from midstream_engine.foreign.metrics.metrics_reader import open_reader
from midstream_engine.foreign.metrics.rows import RowsOfPart
from midstream_engine.foreign.metrics_tail import MetricsTail, read_rows


class Reader:
    """Returns these rows, once."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.parts = [RowsOfPart("metrics.csv", 1, list(rows))]
        self.state: dict[str, Any] = {}

    def poll(self) -> list[RowsOfPart]:
        parts, self.parts = self.parts, []
        return parts


def tailed(path: Path, *rows: dict[str, Any], first: int = 0) -> list[dict[str, Any]]:
    tail = MetricsTail(Reader(*rows), str(path / "metrics.jsonl"), first=first)
    tail.poll()
    tail.close()
    timed = ("time", "throughput/duration")
    return [{name: row[name] for name in row if name not in timed} for row in read_rows(str(path / "metrics.jsonl"))]


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
