"""Readers of other trainers' metrics, by name; they only read.

Each poll returns the rows that are new.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, List, Mapping, Protocol, Tuple

from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics import csv_file, jsonl, regex, tensorboard, trackio, trainer_state, wandb
from midstream_host.driver.metrics.csv_file import CsvParser
from midstream_host.driver.metrics.file_reader import FileReader
from midstream_host.driver.metrics.jsonl import JsonlParser
from midstream_host.driver.metrics.parser import Parser
from midstream_host.driver.metrics.regex import RegexParser
from midstream_host.driver.metrics.rows import Columns, RowsOfPart
from midstream_host.driver.metrics.tensorboard import TensorBoardParser
from midstream_host.driver.metrics.trackio import TrackioReader
from midstream_host.driver.metrics.trainer_state import TrainerStateReader
from midstream_host.driver.metrics.wandb import WandbParser


class MetricsReader(Protocol):
    """A reader; one of the same state continues where it was."""

    @property
    def state(self) -> Dict[str, JsonValue]:
        """Where the reader is, as JSON."""
        ...

    def poll(self) -> List[RowsOfPart]:
        """Return the new rows; see `FileReader.poll`."""
        ...


_FILES: Dict[str, Tuple[Callable[[Columns], Parser], str]] = {
    "tensorboard": (TensorBoardParser, tensorboard.PATTERN),
    "csv": (CsvParser, csv_file.PATTERN),
    "jsonl": (JsonlParser, jsonl.PATTERN),
    "wandb": (WandbParser, wandb.PATTERN),
}
READERS = (*_FILES, "regex", "trainer_state", "trackio")


def open_reader(
    name: str,
    directory: str,
    pattern: str = "",
    *,
    first_step: int = 0,
    names: Mapping[str, str] = {},
    expression: str = "",
    state: JsonValue = None,
) -> MetricsReader:
    """Return the reader of that name.

    Args:
        name: One of `READERS`.
        directory: Where the run writes.
        pattern: Of the files below it; empty: the reader's own.
        first_step: Number that the trainer gives to the first update: 1 for that of transformers, 0 for Lightning.
        names: Column -> name in the source; see `Columns`.
        expression: Regular expression of the reader ``regex``.
        state: State of an earlier reader; None: begin at the beginning.

    Raises:
        ValueError: There is no such reader, or the expression is none.
    """
    columns = Columns(first_step, dict(names))
    if name == "regex":
        make: Callable[[], Parser] = functools.partial(RegexParser, expression, columns)
        make()
        return FileReader(make, directory, pattern or regex.PATTERN, columns, state)
    if name in _FILES:
        kind, usual = _FILES[name]
        return FileReader(functools.partial(kind, columns), directory, pattern or usual, columns, state)
    if name == "trainer_state":
        return TrainerStateReader(directory, pattern or trainer_state.PATTERN, columns, state)
    if name == "trackio":
        return TrackioReader(directory, pattern or trackio.PATTERN, columns, state)
    raise ValueError("{!r} is no reader of metrics (hint: one of {})".format(name[:80], ", ".join(READERS)))
