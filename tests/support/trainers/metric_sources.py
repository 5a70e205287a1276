"""Metrics that trainers and trackers wrote, and what a reader has to find in them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from midstream_host.driver.metrics.metrics_reader import MetricsReader, open_reader
from midstream_host.driver.metrics.rows import Row, RowsOfPart
from support.paths import FIXTURES

TRAINERS = FIXTURES / "trainers"


EXPRESSION = r"iter (?P<step>\d+): loss (?P<loss>\S+), lr (?P<learning_rate>\S+), time (?P<milliseconds>[\d.]+)ms"


class Source(NamedTuple):
    """Metrics that a trainer wrote: of steps 0 to ``rows`` - 1."""

    reader: str
    run: str
    pattern: str
    rows: int
    first_step: int
    options: Mapping[str, Any] = MappingProxyType({})


SOURCES = {
    "tensorboard": Source("tensorboard", "huggingface", "", 6, 1),
    "csv": Source("csv", "lightning", "", 6, 0),
    "trainer_state": Source("trainer_state", "huggingface", "", 6, 1),
    "jsonl": Source("jsonl", "accelerate", "metrics.jsonl", 4, 1),
    "wandb": Source("wandb", "wandb", "", 6, 1),
    "trackio": Source("trackio", "trackio", "", 6, 1),
    "regex": Source("regex", "script", "", 4, 0, {"expression": EXPRESSION}),
}


each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


FILES = [name for name in SOURCES if name not in ("trainer_state", "trackio")]


each_file = pytest.mark.parametrize("source", [SOURCES[name] for name in FILES], ids=FILES)


def opened(source: Source, directory: Path, state: Any = None) -> MetricsReader:
    return open_reader(
        source.reader, str(directory), source.pattern, first_step=source.first_step, state=state, **source.options
    )


def drained(reader: MetricsReader) -> list[RowsOfPart]:
    """Everything until two polls in a row find nothing."""
    found: list[RowsOfPart] = []
    quiet = 0
    while quiet < 2:
        polled = reader.poll()
        quiet = 0 if any(each.rows for each in polled) else quiet + 1
        found += polled
    return found


def rows_of(parts: list[RowsOfPart]) -> list[Row]:
    return [row for each in parts for row in each.rows]


def losses(rows: list[Row]) -> dict[int, float]:
    return {row["global_step"]: row["train/loss"] for row in rows if "train/loss" in row}


def by_step(rows: list[Row]) -> dict[int, Row]:
    """All values of each step, without their time: values that were read apart have times of their own."""
    found: dict[int, Row] = {}
    for row in rows:
        found.setdefault(row["global_step"], {}).update({name: row[name] for name in row if name != "time"})
    return found


def expected(source: Source) -> dict[int, float]:
    """Losses by step, read in another way than the readers do."""
    if source.run == "huggingface":
        history = json.loads((TRAINERS / "huggingface/checkpoint-6/trainer_state.json").read_text())["log_history"]
        return {each["step"] - 1: each["loss"] for each in history if "loss" in each}
    if source.run in ("wandb", "trackio"):
        return {step: 1 / (step + 1) for step in range(source.rows)}
    if source.run == "accelerate":
        lines = map(json.loads, (TRAINERS / "accelerate/metrics.jsonl").read_text().splitlines())
        return {each["step"] - 1: each["loss"] for each in lines}
    if source.run == "script":
        lines = [
            line.split() for line in (TRAINERS / "script/train.log").read_text().splitlines() if line[:4] == "iter"
        ]
        return {int(words[1].rstrip(":")): float(words[3].rstrip(",")) for words in lines}
    lines = [
        line.split(",")
        for line in (TRAINERS / "lightning/lightning_logs/version_0/metrics.csv").read_text().splitlines()
    ]
    step, loss = lines[0].index("step"), lines[0].index("train_loss")
    return {int(cells[step]): float(cells[loss]) for cells in lines[1:] if cells[loss]}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Source], Path]:
    def make(source: Source) -> Path:
        shutil.copytree(TRAINERS / source.run, tmp_path / "run")
        for time, path in enumerate(sorted((tmp_path / "run").rglob("trainer_state.json"))):
            os.utime(path, (1e9 + time, 1e9 + time))  # as they were written
        return tmp_path / "run"

    return make


def the_file(source: Source, directory: Path) -> Path:
    (only,) = [each.source for each in opened(source, directory).poll()]
    return directory / only
