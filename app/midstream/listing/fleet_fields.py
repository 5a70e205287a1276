"""Fields of hosts, runs and migrations, by name.

One line is a column of the lists, what filters, sort and grouping read, a gauge of Prometheus and a line of the
documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from midstream import format
from midstream.listing import run_facts
from midstream.listing.column import Column
from midstream.listing.field_type import Field, Fields
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


def _step(run: RunView, _: FleetMoment) -> str:
    total = run.status.num_train_steps if run.status else 0
    return format.grouped(run.step) + (f"/{format.grouped(total)}" if total else "")


def _start(run: RunView, moment: FleetMoment) -> str:
    begin = run_facts.started(run)
    return format.moment(begin, moment.now) if begin else ""


def _cost(run: RunView, moment: FleetMoment) -> str:
    amount = moment.facts.cost(run.run_id)
    return format.NONE if amount is None else format.money(amount)


def _tags(run: RunView, moment: FleetMoment) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*run_facts.tags(run), *moment.facts.labels.of(run.run_id).tags)))


def _longest_part(view: MigrationView, _: FleetMoment) -> float | None:
    return max(view.downtime.measured.values(), default=None) if view.downtime else None


CONFIG = "config."


def _config(name: str) -> Field:
    """Return the field of a value in the runs' configurations, by its dotted name."""
    of = name[len(CONFIG) :].lower()
    column = Column(of.rpartition(".")[2].upper(), right=True, drop=4, widest=24, field=name)
    return Field(
        name,
        Kind.ANY,
        lambda run, moment: moment.facts.config_value(run, of),
        timed=True,
        column=column,
        beyond_reports=True,
    )


HOSTS = Fields(
    (
        Field("host", Kind.TEXT, lambda host, _: host.name, column=Column("HOST", widest=24, name=True)),
        Field("link", Kind.TEXT, lambda host, _: host.link, column=Column("LINK")),
        Field("accelerators", Kind.TEXT, _accelerators, column=Column("ACCELERATORS", drop=1)),
        Field("util", Kind.SHARE, lambda host, _: run_facts.utilization(host), column=Column("UTIL", True, 2)),
        Field("memory", Kind.SHARE, lambda host, _: run_facts.memory_share(host), column=Column("MEM", True, 3)),
        Field("cpu", Kind.SHARE, _gauge("cpu_used"), column=Column("CPU", True, 4)),
        Field("disk", Kind.SIZE, _gauge("disk_free"), column=Column("DISK FREE", True, 3), about="free disk"),
        Field(
            "age", Kind.DURATION, lambda host, moment: moment.host_age(host), timed=True,
            column=Column("AGE", True), text=lambda host, moment: format.age(moment.host_age(host)),
            about="since its last report",
        ),
        Field(
            "run", Kind.LIST, lambda host, moment: tuple(moment.training_on(host.name)),
            column=Column("RUNS", widest=200, rest=True), about="its running runs",
        ),
        Field("error", Kind.TEXT, lambda host, _: host.error, about="why it does not answer"),
    )
)  # fmt: skip
RUNS = Fields(
    (
        Field("run", Kind.TEXT, lambda run, _: run.run_id, column=Column("RUN", widest=32, name=True)),
        Field(
            "name", Kind.TEXT, lambda run, moment: moment.facts.labels.of(run.run_id).name,
            column=Column("NAME", widest=32, name=True, drop=5, optional=True), about="given with `B` or `--label`",
        ),
        Field("host", Kind.TEXT, lambda run, _: run.host, column=Column("HOST", widest=20, name=True)),
        Field("state", Kind.TEXT, lambda run, _: run.state, column=Column("STATE")),
        Field("step", Kind.NUMBER, lambda run, _: run.step, column=Column("STEP", True), text=_step),
        Field(
            "progress", Kind.SHARE, lambda run, _: run_facts.progress(run), column=Column("PROGRESS", drop=9),
            about="share of its steps that are done", gauge="progress_ratio",
        ),
        Field(
            "left", Kind.DURATION, lambda run, _: run_facts.seconds_left(run), column=Column("LEFT", True, 7),
            about="time to its last step, at the pace of its latest steps", gauge="left_seconds",
        ),
        Field(
            "loss", Kind.NUMBER, lambda run, _: run_facts.loss(run), column=Column("LOSS", True),
            text=lambda run, _: format.loss(run_facts.loss(run)),
        ),
        Field(
            "trend", Kind.SHARE, lambda run, moment: run_facts.trend(moment.facts.points(run)),
            column=Column("CURVE", drop=8), about="change of its loss over the newest quarter of its steps",
        ),
        Field("tok/s", Kind.NUMBER, lambda run, _: run_facts.tokens_per_second(run), column=Column("TOK/S", True, 2)),
        Field(
            "age", Kind.DURATION, _run_age, timed=True, column=Column("AGE", True, 1),
            text=lambda run, moment: format.age(moment.run_age(run)), about="since its last heartbeat",
        ),
        Field("devices", Kind.TEXT, lambda run, _: run_facts.hardware(run, "x"), column=Column("DEVICES", drop=3)),
        Field(
            "elapsed", Kind.DURATION, run_facts.elapsed, timed=True, column=Column("ELAPSED", True, 7, extra=True),
            about="since its first start", gauge="elapsed_seconds",
        ),
        Field(
            "cost", Kind.NUMBER, lambda run, moment: moment.facts.cost(run.run_id), timed=True,
            column=Column("COST", True, 7, extra=True), text=_cost, beyond_reports=True,
            about="of all its processes so far, as the view of costs has it; needs `price_per_hour` of its hosts",
            gauge="cost",
        ),
        Field(
            "util", Kind.SHARE, run_facts.used_by, timed=True, column=Column("UTIL", True, 7, extra=True),
            about="mean utilization of the accelerators that its processes use", gauge="utilization_ratio",
        ),
        Field(
            "start", Kind.TIME, lambda run, _: run_facts.started(run), column=Column("START", drop=5, optional=True),
            text=_start, about="when its first attempt started",
        ),
        Field(
            "tags", Kind.LIST, _tags, column=Column("TAGS", drop=4, widest=30, optional=True),
            about="of its [tracker](configuration.md), and those given with `B`",
        ),
        Field(
            "note", Kind.TEXT, lambda run, moment: moment.facts.labels.of(run.run_id).note,
            column=Column("NOTE", drop=6, optional=True), about="given with `B`",
        ),
        Field(
            "project", Kind.TEXT, lambda run, _: run_facts.project(run),
            column=Column("PROJECT", drop=6, widest=24, extra=True), about="of its [tracker](configuration.md)",
        ),
        Field(
            "reason", Kind.TEXT, _reason, about="why it failed, or what it waits for",
            column=Column("REASON", widest=200, rest=True, optional=True),
        ),
        Field("attempt", Kind.NUMBER, lambda run, _: run.attempt, about="number of its newest attempt"),
        Field("ownership", Kind.NUMBER, lambda run, _: run.epoch, about="its number"),
    ),
    {CONFIG: _config},
)  # fmt: skip
MIGRATIONS = Fields(
    (
        Field("run", Kind.TEXT, lambda view, _: view.plan.run_id, column=Column("RUN", widest=28, name=True)),
        Field("from", Kind.TEXT, lambda view, _: view.plan.source, column=Column("FROM", name=True)),
        Field("to", Kind.TEXT, lambda view, _: view.plan.target, column=Column("TO", name=True)),
        Field("state", Kind.TEXT, lambda view, _: view.state, column=Column("STATE")),
        Field("phase", Kind.TEXT, lambda view, _: view.phase, column=Column("PHASE", drop=2)),
        Field(
            "certificate", Kind.TEXT, lambda view, _: certificate_state(view), column=Column("CERTIFICATE", drop=1),
            about="`certified`, `failed`, `void` after a rollback, `none`",
        ),
        Field(
            "parts", Kind.DURATION, _longest_part, column=Column("PARTS", drop=7),
            about="the longest part of its downtime",
        ),
        Field(
            "downtime", Kind.DURATION, lambda view, _: view.downtime.total if view.downtime else None,
            column=Column("DOWN", True, 3), about="seconds without a step",
        ),
        Field(
            "age", Kind.DURATION, _migration_age, timed=True, column=Column("AGE", True, 4),
            text=lambda view, moment: format.age(_migration_age(view, moment)), about="since it was planned",
        ),
        Field("id", Kind.TEXT, lambda view, _: view.migration, column=Column("ID", entire=True, drop=5)),
        Field("error", Kind.TEXT, lambda view, _: view.error, about="why it failed"),
    )
)  # fmt: skip
