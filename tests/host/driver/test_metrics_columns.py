"""Columns and values of other trainers' metrics, and reasons for none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from midstream_core.crc32c import crc32c
from midstream_host.driver.metrics.metrics_reader import open_reader
from midstream_host.driver.metrics.rows import Columns, Point, PointMerger
from support.trainers.metric_sources import (
    copy,
    drained,
    losses,
    rows_of,
)

__all__ = ["copy"]


def test_names_that_the_user_gives_come_first() -> None:
    columns = Columns(
        1, {"loss": "my/ce", "learning_rate": "sched", "step": "n", "throughput/tokens_per_second": "tps"}
    )
    point = columns.point({"n": 5, "step": 99, "my/ce": 2.5, "loss": 7.0, "sched": 0.1, "tps": 1000, "when": "x"})
    assert point is not None
    row = columns.row(point)
    assert (row["global_step"], row["train/loss"], row["optim/learning_rate"]) == (4, 2.5, 0.1)
    assert row["throughput/tokens_per_second"] == 1000.0
    assert row["loss"] == 7.0


def test_rows_have_a_bounded_number_of_names_of_bounded_length() -> None:
    row = Columns().row(Point(0, None, {f"{number}" + "x" * 1000: 1.0 for number in range(1000)}))
    assert len(row) <= 257
    assert max(map(len, row)) <= 200


def test_values_of_one_step_are_merged_and_a_repeated_one_is_not() -> None:
    merger = PointMerger()
    assert merger.add(Point(1, None, {"lr": 0.1})) == []
    assert merger.add(Point(1, 5.0, {"loss": 2.0})) == []
    assert merger.add(Point(1, 6.0, {"loss": 3.0})) == [Point(1, 5.0, {"lr": 0.1, "loss": 2.0})]
    again = PointMerger(json.loads(json.dumps(merger.state)))
    assert again.flush() == [Point(1, 6.0, {"loss": 3.0})]
    assert again.flush() == []


def test_losses_that_are_not_finite_are_null() -> None:
    row = Columns().row(Point(0, None, {"loss": math.nan, "lr": math.inf}))
    assert (row["train/loss"], row["optim/learning_rate"]) == (None, None)


def test_crc32c_has_the_value_of_its_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # of RFC 3720, appendix B.4


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("jsonl", '[1, "loss", 0.5]\n[2, "loss", 0.4]\n', "its lines are arrays, and rows are read from objects"),
        ("jsonl", '{"loss": 0.5}\n{"loss": 0.4}\n', "its rows have no step (train/global_step, "),
        ("csv", "epoch,loss\n1,0.5\n", "its rows have no step (train/global_step, "),
    ],
)
def test_source_without_rows_has_a_reason(name: str, text: str, problem: str, tmp_path: Path) -> None:
    """ClearML's offline file has an array a line: its curve stayed empty without a word."""
    (tmp_path / f"metrics.{name}").write_text(text)
    parts = drained(open_reader(name, str(tmp_path)))
    assert rows_of(parts) == []
    assert problem in parts[0].problem


def test_settings_before_the_first_row_are_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"settings": {"lr": 1}}\n')
    reader = open_reader("jsonl", str(tmp_path))
    parts = drained(reader)
    with path.open("a") as file:
        file.write('{"step": 1, "loss": 1}\n')
    parts += drained(reader)
    with path.open("a") as file:
        file.write('{"note": "saved"}\n[1]\n')
    parts += drained(reader)
    assert losses(rows_of(parts)) == {1: 1.0}
    assert not [each.problem for each in parts if each.problem]
