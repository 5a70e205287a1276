"""Metrics of a fleet for Prometheus: hosts, accelerators, runs and migrations.

What a host reports is not trusted: names are printable and bounded, and so is their number. Of a host that does not
answer, what it had reported is old: its gauges, and the state and speed of its runs, have no value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from midstream.listing import fleet_fields
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.fleet_moment import FleetMoment
from midstream.printable import printable
from midstream.watch.snapshot import LIVE

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.watch.machine import Machine
    from midstream.watch.snapshot import HostView, RunView, Snapshot

MAX_RUNS = 2000
MAX_ACCELERATORS = 64  # of one host
MAX_LABEL = 200  # characters
MAX_MIGRATIONS = 1000

# Metric, its help, and what reads it of a host that answers. Sizes in bytes.
_MACHINE: tuple[tuple[str, str, Callable[[Machine], float]], ...] = (
    ("cpu_used_ratio", "of its CPUs", lambda machine: machine.cpu_used),
    ("memory_total_bytes", "main memory", lambda machine: machine.memory_total),
    ("memory_used_bytes", "main memory in use", lambda machine: machine.memory_used),
    ("disk_total_bytes", "file system of its root", lambda machine: machine.disk_total),
    ("disk_free_bytes", "free on it", lambda machine: machine.disk_free),
    ("clock_skew_seconds", "its clock minus this machine's", lambda machine: machine.clock_skew),
    ("accelerators", "their number", lambda machine: len(machine.accelerators)),
)
_ACCELERATOR = (
    ("utilization_ratio", "share of the time in which it was busy", "utilization"),
    ("memory_total_bytes", "its memory", "memory_total"),
    ("memory_used_bytes", "its memory in use", "memory_used"),
    ("temperature_celsius", "its temperature", "temperature"),
    ("power_watts", "its power", "power"),
)
# Metric, its help, and the column of a run's newest row that has it.
_ROW = (
    ("step_duration_seconds", "duration of the newest step", "throughput/duration"),
    ("tokens_per_second", "tokens of the newest step, divided by its duration", "throughput/tokens_per_second"),
)


class FleetMetrics:
    """A collector of prometheus_client.

    ``snapshot`` and ``migrations`` return the state of now; ``facts`` has what runs have cost.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        migrations: Callable[[], Sequence[MigrationView]],
        facts: FleetFacts | None = None,
    ) -> None:
        self._snapshot, self._migrations, self._facts = snapshot, migrations, facts or FleetFacts()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        at = self._snapshot()
        yield from _of_hosts(at.hosts)
        yield from _of_accelerators(at.hosts)
        yield from _of_runs(at, self._facts)
        yield from _of_migrations(self._migrations())


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float | None]]
) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily(f"midstream_{name}", text, labels=labels)
    for values, value in samples:
        if value is not None:
            gauge.add_metric([_label(label) for label in values], float(value))
    return gauge


def _label(text: object) -> str:
    return printable(str(text))[:MAX_LABEL]


def _of_hosts(hosts: Sequence[HostView]) -> Iterator[Metric]:
    up = (((host.name,), float(host.link == LIVE)) for host in hosts)
    yield _gauge("host_up", "1: the host answers", ["host"], up)
    seen = (((host.name,), host.last_seen) for host in hosts)
    yield _gauge("host_last_seen_timestamp_seconds", "when it last reported", ["host"], seen)
    machines = [(host.name, host.machine) for host in hosts if host.link == LIVE and host.machine is not None]
    for name, text, read in _MACHINE:
        yield _gauge(f"host_{name}", text, ["host"], (((host,), read(machine)) for host, machine in machines))


def _of_accelerators(hosts: Sequence[HostView]) -> Iterator[Metric]:
    accelerators = [
        (host.name, accelerator)
        for host in hosts
        if host.link == LIVE and host.machine is not None
        for accelerator in host.machine.accelerators[:MAX_ACCELERATORS]
    ]
    for name, text, attribute in _ACCELERATOR:
        samples = (
            ((host, accelerator.index, accelerator.kind), getattr(accelerator, attribute))
            for host, accelerator in accelerators
        )
        yield _gauge(f"accelerator_{name}", text, ["host", "accelerator", "kind"], samples)  # type: ignore[arg-type]


def _of_runs(at: Snapshot, facts: FleetFacts) -> Iterator[Metric]:
    current = at.current()
    runs, labels = current[:MAX_RUNS], ["run", "host"]
    answering = {host.name for host in at.hosts if host.link == LIVE}
    answered = [run for run in runs if run.host in answering]
    yield _gauge("runs", "their number", [], [((), len(current))])

    def gauge(of: Iterable[RunView], name: str, text: str, read: Callable[[RunView], float | None]) -> Metric:
        return _gauge(f"run_{name}", text, labels, (((run.run_id, run.host), read(run)) for run in of))

    yield gauge(answered, "running", "1: its process runs", lambda run: float(run.running))
    yield gauge(runs, "step", "its newest step", lambda run: run.step)
    yield gauge(runs, "checkpoint_step", "step of its newest complete checkpoint", _newest_checkpoint)
    states = (((run.run_id, run.host, run.state), 1.0) for run in answered)
    yield _gauge("run_state", "1 for the state that it has", [*labels, "state"], states)
    yield gauge(runs, "loss", "training loss of the newest row", lambda run: _newest(run, "train/loss"))
    moment = FleetMoment(at, (), at.time, facts)
    for field in fleet_fields.RUNS.values():
        if field.gauge:
            of = runs if field.beyond_reports else answered
            yield gauge(of, field.gauge, field.about, lambda run, field=field: field.get(run, moment))
    for name, text, column in _ROW:
        yield gauge(answered, name, text, lambda run, column=column: _newest(run, column))


def _newest_checkpoint(run: RunView) -> float | None:
    return max((checkpoint.step for checkpoint in run.checkpoints if checkpoint.complete), default=None)


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
