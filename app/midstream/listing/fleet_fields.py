"""Fields of hosts, runs and migrations, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from midstream.listing import run_facts
from midstream.listing.field_type import Field, by_name
from midstream.listing.filter_values import Kind
from midstream.listing.fleet_moment import FleetMoment
from midstream.watch.snapshot import HostView, RunView

if TYPE_CHECKING:
    from midstream.migrate.journal.migration_view import MigrationView

NO_CERTIFICATE = "none"


def certificate_state(view: MigrationView) -> str:
    """Return ``certified``, ``failed``, ``void`` or ``none``."""
    return view.verdict or NO_CERTIFICATE


def _accelerators(host: HostView, _: FleetMoment) -> str:
    accelerators = host.machine.accelerators if host.machine else ()
    return f"{len(accelerators)}x{run_facts.short_kind(accelerators[0].kind)}" if accelerators else ""


def _gauge(name: str) -> Any:
    """Return a function that returns a value of a host's machine."""
    return lambda host, _: getattr(host.machine, name) if host.machine else None


def _migration_age(view: MigrationView, moment: FleetMoment) -> float | None:
    created = view.plan.identity.created
    return max(0.0, moment.now - created) if created else None


def _run_age(run: RunView, moment: FleetMoment) -> float | None:
    return moment.run_age(run)


def _reason(run: RunView, moment: FleetMoment) -> str:
    failure = moment.failure(run)
    return failure.reason if failure else run.remark


HOSTS = by_name(
    (
        Field("host", Kind.TEXT, lambda host, _: host.name),
        Field("link", Kind.TEXT, lambda host, _: host.link),
        Field("accelerators", Kind.TEXT, _accelerators),
        Field("util", Kind.SHARE, lambda host, _: run_facts.utilization(host)),
        Field("memory", Kind.SHARE, lambda host, _: run_facts.memory_share(host)),
        Field("cpu", Kind.SHARE, _gauge("cpu_used")),
        Field("disk", Kind.SIZE, _gauge("disk_free")),
        Field("age", Kind.DURATION, lambda host, moment: moment.host_age(host), timed=True),
        Field("run", Kind.LIST, lambda host, moment: tuple(moment.training_on(host.name))),
        Field("error", Kind.TEXT, lambda host, _: host.error),
    )
)
RUNS = by_name(
    (
        Field("run", Kind.TEXT, lambda run, _: run.run_id),
        Field("host", Kind.TEXT, lambda run, _: run.host),
        Field("state", Kind.TEXT, lambda run, _: run.state),
        Field("step", Kind.NUMBER, lambda run, _: run.step),
        Field("loss", Kind.NUMBER, lambda run, _: run_facts.loss(run)),
        Field("tok/s", Kind.NUMBER, lambda run, _: run_facts.tokens_per_second(run)),
        Field("age", Kind.DURATION, _run_age, timed=True),
        Field("devices", Kind.TEXT, lambda run, _: run_facts.hardware(run, "x")),
        Field("start", Kind.TIME, lambda run, _: run_facts.started(run)),
        Field("tags", Kind.LIST, lambda run, _: run_facts.tags(run)),
        Field("project", Kind.TEXT, lambda run, _: run_facts.project(run)),
        Field("reason", Kind.TEXT, _reason),
        Field("attempt", Kind.NUMBER, lambda run, _: run.attempt),
        Field("ownership", Kind.NUMBER, lambda run, _: run.epoch),
    )
)
MIGRATIONS = by_name(
    (
        Field("run", Kind.TEXT, lambda view, _: view.plan.run_id),
        Field("from", Kind.TEXT, lambda view, _: view.plan.source),
        Field("to", Kind.TEXT, lambda view, _: view.plan.target),
        Field("state", Kind.TEXT, lambda view, _: view.state),
        Field("phase", Kind.TEXT, lambda view, _: view.phase),
        Field("certificate", Kind.TEXT, lambda view, _: certificate_state(view)),
        Field("downtime", Kind.DURATION, lambda view, _: view.downtime.total if view.downtime else None),
        Field("age", Kind.DURATION, _migration_age, timed=True),
        Field("id", Kind.TEXT, lambda view, _: view.migration),
        Field("error", Kind.TEXT, lambda view, _: view.error),
    )
)
