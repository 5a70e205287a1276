"""Facts about runs beyond the reports: costs, and values of configurations.

A list that names one of them notes it here; a thread reads what was noted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from midstream.listing.labels import Labels
from midstream.watch.snapshot import RunView

MAX_READERS = 8  # configurations that are read at a time
MAX_AT_ONCE = 256  # configurations of one `FleetFacts.read`: those that are visible come first
POINTS = 12  # of a run's sparkline
ROWS_OF_POINT = 8  # rows of the curve whose mean is a point

ConfigValue = float | str | bool | None
AttemptKey = tuple[str, str, int]  # host, run, attempt: the configuration of an attempt does not change


class FleetFacts:
    """Costs and configurations of runs, read once a list names them."""

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels()
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._configs: dict[AttemptKey, Mapping[str, ConfigValue]] = {}  # with the values of `_names` alone
        self._noted: dict[AttemptKey, RunView] = {}
        self._costs: Mapping[str, float] = {}
        self._points: dict[tuple[str, str], tuple[object, tuple[float, ...]]] = {}
        self.costs_named = False  # a list has a column, an order or a filter of costs

    @property
    def due(self) -> bool:
        """Whether configurations are noted that nothing has read yet."""
        return bool(self._noted)

    def cost(self, run_id: str) -> float | None:
        """Return what a run has cost; None: not known, or a host without a price."""
        self.costs_named = True
        return self._costs.get(run_id)

    def config_value(self, run: RunView, name: str) -> ConfigValue:
        """Return a value of a run's configuration; None: none, or not known.

        ``name`` is its dotted name in lower case.
        """
        if not run.attempt:
            return None
        key = (run.host, run.run_id, run.attempt)
        if name not in self._names:
            with self._lock:
                self._names.add(name)
                self._configs = {}  # what was read has no value of this name
        values = self._configs.get(key)
        if values is None:
            self._noted.setdefault(key, run)
            return None
        return values.get(name)

    def points(self, run: RunView) -> tuple[float, ...]:
        """Return `POINTS` losses over the steps of a run, the newest last."""
        cached = self._points.get(run.key)
        if cached is None or cached[0] is not run.curve:
            cached = self._points[run.key] = (run.curve, loss_points(run))
        return cached[1]

    def read(self, config: Callable[[RunView], str]) -> bool:
        """Read the configurations that are noted; return whether there were any.

        ``config`` returns the configuration of a run's newest attempt as YAML, or raises MidstreamError.
        """
        from concurrent.futures import ThreadPoolExecutor  # after the first frame

        with self._lock:
            noted, names, configs = list(self._noted.items())[-MAX_AT_ONCE:], frozenset(self._names), self._configs
        if not noted:
            return False
        with ThreadPoolExecutor(MAX_READERS) as pool:
            values = list(pool.map(lambda item: _values(config, item[1], names), noted))
        with self._lock:
            for (key, _), config_values in zip(noted, values, strict=True):
                configs[key] = config_values  # a dict that was replaced during the read is read again
                self._noted.pop(key, None)
        return True

    def set_costs(self, costs: Mapping[str, float]) -> None:
        """Set what each run has cost so far, by its id."""
        self._costs = costs


def _values(config: Callable[[RunView], str], run: RunView, names: frozenset[str]) -> Mapping[str, ConfigValue]:
    """Return the values of these names; empty where the configuration cannot be read."""
    from midstream.errors import MidstreamError
    from midstream.watch import resolved_config

    try:
        flat = resolved_config.fields(config(run))
    except MidstreamError:
        return {}  # the cell stays empty: nothing is known
    named = ((name.lower(), value) for name, value in flat.items() if name.lower() in names)
    return {name: value if isinstance(value, float | int | str | None) else str(value) for name, value in named}


def loss_points(run: RunView) -> tuple[float, ...]:
    """Return means of the loss at evenly spaced rows, at most `POINTS`.

    Parts without a loss are left out.
    """
    from midstream.watch.loss_curve import CurveRows

    rows, total = run.curve, len(run.curve)
    parts = min(POINTS, total)
    means = list[float]()
    for number in range(parts):
        stop = total * (number + 1) // parts
        begin = max(total * number // parts, stop - ROWS_OF_POINT)
        values: Sequence[object] = (
            rows.numbers("train/loss", begin, stop)[0]
            if isinstance(rows, CurveRows)
            else [row.get("train/loss") for row in rows[begin:stop]]
        )
        finite = [value for value in values if isinstance(value, int | float) and abs(value) < 1e300]
        if finite:
            means.append(sum(finite) / len(finite))
    return tuple(means)
