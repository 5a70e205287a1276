"""Rows of ``metrics.jsonl`` from a trainer's rows: each step once, its learning rate beside its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
