"""Metrics of a fleet for Prometheus: hosts, accelerators, runs and migrations.

What a host reports is not trusted: names are printable and bounded, and so is their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from midstream.printable import printable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.watch.snapshot import HostView, RunView, Snapshot

MAX_RUNS = 2000
MAX_ACCELERATORS = 64  # of one host
MAX_LABEL = 200  # characters
MAX_MIGRATIONS = 1000

# Metric, its help, and what reads it of a host. Sizes in bytes.
_HOST: tuple[tuple[str, str, Callable[[HostView], float | None]], ...] = (
    ("up", "1: the host answers", lambda host: float(host.link == "live")),
    ("last_seen_timestamp_seconds", "when it last reported", lambda host: host.last_seen),
    ("cpu_used_ratio", "of its CPUs", lambda host: host.machine and host.machine.cpu_used),
    ("memory_total_bytes", "main memory", lambda host: host.machine and host.machine.memory_total),
    ("memory_used_bytes", "main memory in use", lambda host: host.machine and host.machine.memory_used),
    ("disk_total_bytes", "file system of its root", lambda host: host.machine and host.machine.disk_total),
    ("disk_free_bytes", "free on it", lambda host: host.machine and host.machine.disk_free),
    ("clock_skew_seconds", "its clock minus this machine's", lambda host: host.machine and host.machine.clock_skew),
    ("accelerators", "their number", lambda host: host.machine and len(host.machine.accelerators)),
)  # fmt: skip
_ACCELERATOR = (
    ("utilization_ratio", "share of the time in which it was busy", "utilization"),
    ("memory_total_bytes", "its memory", "memory_total"),
    ("memory_used_bytes", "its memory in use", "memory_used"),
    ("temperature_celsius", "its temperature", "temperature"),
    ("power_watts", "its power", "power"),
)
# Metric, its help, and the column of a run's newest row that has it.
_ROW = (
    ("loss", "training loss of the newest row", "train/loss"),
    ("step_duration_seconds", "duration of the newest step", "throughput/duration"),
    ("tokens_per_second", "tokens of the newest step, divided by its duration", "throughput/tokens_per_second"),
)


class FleetMetrics:
    """A collector of prometheus_client.

    ``snapshot`` and ``migrations`` return the state of now.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], migrations: Callable[[], Sequence[MigrationView]]) -> None:
        self._snapshot, self._migrations = snapshot, migrations

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        at = self._snapshot()
        yield from _of_hosts(at.hosts)
        yield from _of_accelerators(at.hosts)
        yield from _of_runs(at)
        yield from _of_migrations(self._migrations())


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float | None]]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    found = GaugeMetricFamily(f"midstream_{name}", text, labels=labels)
    for values, value in samples:
        if value is not None:
            found.add_metric([_label(each) for each in values], float(value))
    return found


def _label(text: object) -> str:
    return printable(str(text))[:MAX_LABEL]


def _of_hosts(hosts: Sequence[HostView]) -> Iterator[Metric]:
    for name, text, read in _HOST:
        yield _gauge(f"host_{name}", text, ["host"], (((host.name,), read(host)) for host in hosts))


def _of_accelerators(hosts: Sequence[HostView]) -> Iterator[Metric]:
    known = [
        (host.name, each)
        for host in hosts
        if host.machine is not None
        for each in host.machine.accelerators[:MAX_ACCELERATORS]
    ]
    for name, text, attribute in _ACCELERATOR:
        samples = (((host, each.index, each.kind), getattr(each, attribute)) for host, each in known)
        yield _gauge(f"accelerator_{name}", text, ["host", "accelerator", "kind"], samples)  # type: ignore[arg-type]


def _of_runs(at: Snapshot) -> Iterator[Metric]:
    current = at.current()
    runs, labels = current[:MAX_RUNS], ["run", "host"]
    yield _gauge("runs", "their number", [], [((), len(current))])

    def each(name: str, text: str, read: Callable[[RunView], float | None]) -> Metric:
        return _gauge(f"run_{name}", text, labels, (((run.run_id, run.host), read(run)) for run in runs))

    yield each("running", "1: its process runs", lambda run: float(run.running))
    yield each("step", "its newest step", lambda run: run.step)
    yield each("checkpoint_step", "step of its newest complete checkpoint", _newest_checkpoint)
    states = (((run.run_id, run.host, run.state), 1.0) for run in runs)
    yield _gauge("run_state", "1 for the state that it has", [*labels, "state"], states)
    for name, text, column in _ROW:
        yield each(name, text, lambda run, column=column: _newest(run, column))


def _newest_checkpoint(run: RunView) -> float | None:
    return max((each.step for each in run.checkpoints if each.complete), default=None)


def _newest(run: RunView, column: str) -> float | None:
    for row in reversed(run.curve[-50:]):
        value = row.get(column)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _of_migrations(migrations: Sequence[MigrationView]) -> Iterator[Metric]:
    counts: dict[str, int] = {}
    for view in migrations:
        counts[view.state] = counts.get(view.state, 0) + 1
    yield _gauge(
        "migrations", "their number by state", ["state"], (((state,), number) for state, number in counts.items())
    )
    recent = migrations[:MAX_MIGRATIONS]
    labels = ["migration", "run", "target"]
    yield _gauge(
        "migration_state", "1 for the state and the phase that it has", [*labels, "state", "phase"],
        (((*_names(view), view.state, view.phase), 1.0) for view in recent),
    )  # fmt: skip
    downtimes = ((_names(view), view.downtime.total if view.downtime else None) for view in recent)
    yield _gauge("migration_downtime_seconds", "seconds without a step", labels, downtimes)


def _names(view: MigrationView) -> tuple[str, str, str]:
    return view.migration, view.plan.run_id, view.plan.target


class CachedMigrations:
    """Migrations as `list_migrations` reads them, at most once in some seconds.

    Each migration has a directory of files.
    """

    def __init__(self, read: Callable[[], list[MigrationView]], seconds: float = 5.0) -> None:
        self._read, self._seconds = read, seconds
        self._found: list[MigrationView] = []
        self._due = 0.0

    def __call__(self) -> list[MigrationView]:
        if time.monotonic() >= self._due:
            self._found, self._due = self._read(), time.monotonic() + self._seconds
        return self._found
