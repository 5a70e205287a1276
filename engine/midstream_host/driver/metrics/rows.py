"""Rows of ``metrics.jsonl`` from the points that another trainer's metrics have."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from midstream_core.json_types import JsonValue, list_or_empty

Row = Dict[str, Any]  # global_step, train/loss, optim/learning_rate, time, and what else the source has

MAX_NAMES = 256  # of a row
NAME_LIMIT = 200  # characters
MAX_STEP = 1 << 53
LOSS, LEARNING_RATE, EVAL_LOSS = "train/loss", "optim/learning_rate", "eval/loss"
# Names in the source, by the name of the column: the first that the source has.
USUAL: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (LOSS, ("train/loss", "train_loss", "train_loss_step", "loss/train", "Loss/train", "training_loss", "loss",
            "train/loss_step", "lm_loss", "learning/loss")),
    (LEARNING_RATE, ("optim/learning_rate", "train/learning_rate", "learning_rate", "train/lr", "lr", "learning/lr",
                     "learning/current_learning_rate")),
    (EVAL_LOSS, ("eval/loss", "eval_loss", "val_loss", "val/loss", "valid_loss", "validation_loss")),
)  # fmt: skip
LEARNING_RATE_PREFIX = "lr-"  # Lightning's monitor: lr-AdamW
STEP_NAMES = ("train/global_step", "trainer/global_step", "global_step", "step", "iteration", "iter", "_step")
COUNTER = "_step"  # W&B's and trackio's own: it counts the rows of a process, from 0 after a resume too
COUNTED = "counted"  # in a row: the field that its step is from, where that counts the rows of a process
EARLIEST, LATEST = 1e9, 1e10  # seconds since 1970: years 2001 to 2286
TIME_NAMES = ("_timestamp", "time", "timestamp", "wall_time")


class Point(NamedTuple):
    """Values of one step. ``time``: seconds, None where the source has none.

    ``counted``: the step counts the rows of a process; it may begin at 0 after a resume.
    """

    step: int
    time: Optional[float]
    values: Dict[str, float]
    counted: bool = False


@dataclasses.dataclass(frozen=True)
class Columns:
    """Map a source's names to columns.

    ``first_step``: number that the source gives to the first update. ``names``: column (``loss``, ``learning_rate``,
    ``step``, ``time``, or one of the row) -> name in the source, for what is not found by the usual names.
    """

    first_step: int = 0
    names: Mapping[str, str] = dataclasses.field(default_factory=lambda: {})

    @property
    def step_names(self) -> Sequence[str]:
        """Names of the step in the source, the first that is there counts."""
        return (self.names["step"],) if "step" in self.names else STEP_NAMES

    @property
    def time_names(self) -> Sequence[str]:
        """Names of the time in the source."""
        return (self.names["time"],) if "time" in self.names else TIME_NAMES

    @property
    def without_step(self) -> str:
        """Describe a source whose rows have no step."""
        return "its rows have no step ({}): metrics: {{names: {{step: NAME}}}}".format(", ".join(self.step_names))

    def point(self, values: Mapping[str, object]) -> Optional[Point]:
        """Return the point of a mapping's numbers; None where it has no step.

        The step is one of the mapping's values.
        """
        name = next((name for name in self.step_names if integer(values.get(name)) is not None), None)
        if name is None:
            return None
        times = [moment(values.get(name)) for name in self.time_names]
        left_out = {*self.step_names, *self.time_names}
        numbers = {key: number(value) for key, value in values.items() if key not in left_out}
        return Point(
            integer(values[name]) or 0,
            next((time for time in times if time is not None), None),
            {key: value for key, value in numbers.items() if value is not None},
            name == COUNTER,
        )

    def row(self, point: Point) -> Row:
        """Return a point's row: step counted from 0, names as in ``metrics.jsonl``."""
        row: Row = {"global_step": max(0, point.step - self.first_step)}
        if point.time is not None:
            row["time"] = point.time
        if point.counted:
            row[COUNTED] = COUNTER
        values = dict(list(point.values.items())[:MAX_NAMES])
        for column, candidates in self._columns():
            loss_name = next((name for name in candidates if name in values), None)
            if loss_name is None and column == LEARNING_RATE:
                loss_name = next((name for name in values if name.startswith(LEARNING_RATE_PREFIX)), None)
            if loss_name is not None:
                row[column] = finite(values.pop(loss_name))
        for name, value in values.items():
            row.setdefault(name[:NAME_LIMIT], finite(value))
        return row

    def _columns(self) -> List[Tuple[str, Sequence[str]]]:
        given = {"loss": LOSS, "learning_rate": LEARNING_RATE}
        named = {given.get(key, key): value for key, value in self.names.items() if key not in ("step", "time")}
        usual: Dict[str, Sequence[str]] = dict(USUAL)
        return [(column, (name,)) for column, name in named.items()] + [
            (column, names) for column, names in usual.items() if column not in named
        ]


@dataclasses.dataclass(frozen=True)
class RowsOfPart:
    """New rows of a part of a run's metrics.

    ``part`` counts the files as they appeared, from 1: a new file, or one that was replaced or truncated, is a new
    part, and its rows may repeat steps of earlier parts. ``problem``: why reading waits; empty where it does not.
    """

    source: str
    part: int
    rows: List[Row]
    problem: str = ""
    modified: Optional[float] = None  # seconds, of the file when it was read; None where it is not known


def number(value: object) -> Optional[float]:
    """A number of JSON, or the text of one; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str) and len(value) <= 64:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def integer(value: object) -> Optional[int]:
    """A number that a step may have; None for anything else."""
    value_number = number(value)
    if (
        value_number is None
        or not math.isfinite(value_number)
        or value_number != int(value_number)
        or not 0 <= value_number < MAX_STEP
    ):
        return None
    return int(value_number)


def moment(value: object) -> Optional[float]:
    """Return a time of day in seconds since 1970.

    It may be in seconds, milliseconds, microseconds or nanoseconds. None for another number: a column ``time`` may have
    the seconds of a step, or those since the start. It would be before the trainer's start, and its row history.
    """
    seconds = number(value)
    scales = (scale for scale in (1.0, 1e3, 1e6, 1e9) if seconds is not None and EARLIEST <= seconds / scale < LATEST)
    scale = next(scales, None)
    return None if seconds is None or scale is None else seconds / scale


def finite(value: float) -> Optional[float]:
    """A number as ``metrics.jsonl`` has it: null where it is not finite."""
    return value if math.isfinite(value) else None


class PointMerger:
    """Merger of consecutive points of the same step into one.

    Sources write loss and learning rate apart.
    """

    def __init__(self, state: JsonValue = None) -> None:
        """Continue with the point of ``state`` (see `state`), which was not complete."""
        self._open: Optional[Point] = None
        parts = list_or_empty(state)
        if len(parts) in (3, 4) and type(parts[0]) is int and isinstance(parts[2], dict):
            numbers = {key: number(value) for key, value in parts[2].items()}
            values = {key: value for key, value in numbers.items() if value is not None}
            self._open = Point(parts[0], number(parts[1]), values, parts[3:] == [True])

    @property
    def state(self) -> JsonValue:
        """The point that may get more values, as JSON."""
        return None if self._open is None else list(self._open)

    def add(self, point: Point) -> List[Point]:
        """Add a point; return the one that is complete by it."""
        before = self._open
        if before is not None and before.step == point.step and not (set(before.values) & set(point.values)):
            time = before.time if before.time is not None else point.time
            self._open = before._replace(time=time, values={**before.values, **point.values})
            return []
        self._open = point
        return [] if before is None else [before]

    def flush(self) -> List[Point]:
        """Return the open point: the source was quiet since it was read."""
        before, self._open = self._open, None
        return [] if before is None else [before]
