"""The batch schedule: examples and first sample of each update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream_engine.config.errors import ConfigError


@dataclass(frozen=True)
class BatchSchedule:
    """Examples per update.

    ``points``: (first step, examples per update from that step on), from step 0, strictly increasing, each a change.
    """

    points: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, value: object, where: str = "trainer.train_batch_size") -> BatchSchedule:
        """Return the schedule of a number or of a list of starts and values.

        A list is ``[{start: 0, value: 32}, {start: 1000, value: 64}]``.

        Raises:
            ConfigError: The value is anything else.
        """
        entries = value if isinstance(value, (list, tuple)) else [{"start": 0, "value": value}]
        points: list[tuple[int, int]] = []
        for entry in entries:
            if not isinstance(entry, Mapping) or set(entry) != {"start", "value"}:
                raise ConfigError(f"{where}: {entry!r} is neither a number nor {{start: STEP, value: EXAMPLES}}")
            start, size = _integer(entry["start"]), _integer(entry["value"])
            if size is None or size < 1:
                raise ConfigError(f"{where}: {entry['value']!r} is not a positive number of examples")
            if start is None or (start != 0 if not points else start <= points[-1][0]):
                raise ConfigError(f"{where}: starts must increase from 0; found {entry['start']!r}")
            points.append((start, size))
        if not points:
            raise ConfigError(f"{where}: the schedule is empty")
        return cls(_merged(points))

    @classmethod
    def from_json(cls, value: Sequence[Mapping[str, int]]) -> BatchSchedule:
        """Return the schedule of ``to_json``."""
        return cls(tuple((int(point["start"]), int(point["size"])) for point in value))

    def to_json(self) -> list[dict[str, int]]:
        """Return the schedule for ``train.json``."""
        return [{"start": start, "size": size} for start, size in self.points]

    def size(self, step: int) -> int:
        """Return the examples of update ``step``."""
        return next(size for start, size in reversed(self.points) if start <= step)

    def sizes(self, first: int, end: int) -> list[int]:
        """Return the distinct sizes of the updates [first, end), in order of use."""
        later = [size for start, size in self.points if first < start < end]
        return list(dict.fromkeys([self.size(first), *later]))

    def first_sample(self, step: int) -> int:
        """Return the first sample of update ``step``: the sum of all sizes before it."""
        ends = [start for start, _ in self.points[1:]] + [step]
        return sum(size * max(0, min(end, step) - start) for (start, size), end in zip(self.points, ends, strict=True))

    def then(self, step: int, other: BatchSchedule) -> BatchSchedule:
        """Return this schedule before ``step`` and ``other`` from there on.

        The past never changes.
        """
        past = [point for point in self.points if point[0] < step]
        return BatchSchedule(_merged([*past, (step, other.size(step)), *(p for p in other.points if p[0] > step)]))

    def __str__(self) -> str:
        if len(self.points) == 1:
            return str(self.points[0][1])
        return ", ".join(f"{size} from step {start}" for start, size in self.points)


def _merged(points: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Remove the points that change nothing."""
    kept: list[tuple[int, int]] = []
    for point in points:
        if not kept or point[1] != kept[-1][1]:
            kept.append(point)
    return tuple(kept)


def _integer(value: object) -> int | None:
    """Return ``value`` if it is an integer, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
