"""`--status`: hosts, runs, migrations and slices."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from midstream import format
from midstream.counts import count
from midstream.errors import Exit, UsageError
from midstream.headless.status_lines import StatusLines
from midstream.listing import labels, run_facts
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.fleet_moment import FleetMoment
from midstream.operations.fleet_facts import read_for
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.output import Output, table
from midstream.ownership.judgement import CLAIM, FORMER, Judgement
from midstream.printable import excerpt
from midstream.state_directory import migrations_directory
from midstream.watch.run_failure import failure_of
from midstream_core.listed_checkpoint import newest_checkpoint

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.listing.conditions import Condition
    from midstream.listing.field_type import Field
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.watch.machine import Machine
    from midstream.watch.snapshot import RunView, Snapshot

MAX_REASON = 200  # characters of a reason in the table; --json has all of it


def status(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print hosts, runs, and migrations that are open or were rolled back.

    With ``--filter``, print the runs that pass it. Return 0 also for unreachable hosts: their lines say so.

    Raises:
        FilterError: The filter is malformed.
    """
    from midstream.hosts.host_pool import HostPool

    condition = _condition(options.filter)  # before any host is connected
    columns = _columns(options.columns, output)
    facts = FleetFacts(labels.load())
    hosts = HostPool(fleet)
    hosts.prepare()
    try:
        if output.as_json and not _needs_facts(condition):
            return _json_lines(hosts, condition, output)
        snapshot = fleet_snapshot(hosts, seen=lambda _: _migrations())
        moment = FleetMoment(snapshot, (), time.time(), facts)
        if _needs_facts(condition) or columns:
            read_for(facts, hosts, lambda: _chosen_rows(moment, condition, columns))
    finally:
        hosts.close()
    if columns:
        output.value({}, table(_chosen_rows(moment, condition, columns)))
        return Exit.DONE
    if output.as_json:
        StatusLines(output, condition, facts).finish(snapshot)
        return Exit.DONE
    if condition is not None:
        return _filtered_runs(moment, condition, output)
    lines = table(host_rows(snapshot))
    runs = run_rows(snapshot)
    lines += ["", *table(runs), *_problems(snapshot.runs)] if snapshot.runs else ["", _no_runs(snapshot)]
    migrations = shown_migrations(_migrations()(fleet))
    if migrations:
        lines += ["", *table(migration_rows(migrations)), *filter(None, map(damage_line, migrations))]
    output.value({}, lines)
    _slices(fleet, output)
    return Exit.DONE


def _no_runs(snapshot: Snapshot) -> str:
    """Return the line of a fleet in which no run was found.

    Hosts that do not answer may have some.
    """
    if not snapshot.hosts:
        return "the fleet file has no hosts: docs/reference/fleet-file.md describes them"
    unreachable = [host.name for host in snapshot.hosts if host.link != "live"]
    if unreachable:
        return f"no runs on the hosts that answer; not answering: {', '.join(unreachable)}"
    return "no runs yet: midstream --launch CONFIG --on TARGET starts one"


def _json_lines(hosts: HostPool, condition: Condition | None, output: Output) -> int:
    """Write hosts and runs as they become known, then migrations and slices.

    With a condition, write the runs alone.
    """
    lines = StatusLines(output, condition)
    lines.finish(fleet_snapshot(hosts, seen=lines.update))
    if condition is not None:
        return Exit.DONE
    from midstream.listing import documents

    for migration in _migrations()(hosts.fleet):
        output.event(documents.migration_event(migration))
    _slices(hosts.fleet, output)
    return Exit.DONE


def shown_migrations(migrations: Sequence[MigrationView]) -> list[MigrationView]:
    """Return migrations that are open, damaged, or their run's newest and rolled back.

    ``migrations`` are in any order.
    """
    newest: dict[str, MigrationView] = {}
    for view in migrations:
        latest = newest.get(view.plan.run_id)
        if latest is None or view.plan.identity.created > latest.plan.identity.created:
            newest[view.plan.run_id] = view
    return [
        view
        for view in migrations
        if view.open or view.damage or (view.rolled_back and newest[view.plan.run_id] is view)
    ]


# The columns that the terminal UI has too have its names and formats: a test compares them.


def host_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return the heading and rows of the table of hosts."""
    moment = FleetMoment(snapshot, (), time.time())
    rows = [("HOST", "LINK", "ACCELERATORS", "UTIL", "MEM", "CPU", "DISK FREE", "AGE", "")]
    for host in snapshot.hosts:
        machine = host.machine
        rows.append(
            (
                host.name,
                host.link,
                _accelerators(machine.accelerators) if machine else format.NONE,
                format.percent(run_facts.utilization(host)),
                format.percent(run_facts.memory_share(host)),
                format.percent(machine.cpu_used if machine else None),
                format.size(machine.disk_free if machine else None),
                format.age(moment.host_age(host)),
                host.error or (_remarks(machine) if machine else ""),
            )
        )
    return rows


def migration_rows(migrations: Sequence[MigrationView]) -> list[tuple[str, ...]]:
    """Return the heading and rows of the table of migrations."""
    rows = [("RUN", "FROM", "TO", "STATE", "PHASE", "CERTIFICATE", "DOWN", "AGE", "ID")]
    for view in migrations:
        plan, down = view.plan, view.downtime.total if view.downtime else None
        age = format.age_since(plan.identity.created)
        cells = (plan.run_id, plan.source, plan.target, view.state, view.phase, view.verdict or format.NONE)
        rows.append((*cells, format.seconds(down), age, view.migration))
    return rows


def run_rows(snapshot: Snapshot, chosen: Container[RunView] | None = None) -> list[tuple[str, ...]]:
    """Return the heading and rows of the table of runs, one for each attempt.

    With ``chosen``, the rows are those of ``chosen``.
    """
    moment = FleetMoment(snapshot, (), time.time())
    runs = [("RUN", "HOST", "STATE", "STEP", "LOSS", "TOK/S", "AGE", "OWNERSHIP", "CHECKPOINT", "REASON")]
    judgements: dict[str, Judgement] = {}
    for run in snapshot.runs:
        members = snapshot.members(run)
        if run is not members[0] or (chosen is not None and run not in chosen):
            continue  # another process of the same attempt
        total = run.status.num_train_steps if run.status else 0
        newest = newest_checkpoint(checkpoint for checkpoint in run.checkpoints if checkpoint.complete)
        judgement = judgements.setdefault(run.run_id, snapshot.judgement(run.run_id))
        claim = judgement.standing(run.host)
        current = " (claim)" if claim.kind == CLAIM else ""
        former = claim.kind == FORMER and judgement.head is not None
        if not current and (former or run is not snapshot.copies(run.run_id)[0]):
            current = " (former copy)"
        runs.append(
            (
                run.run_id,
                "+".join(member.host for member in members),
                _state(members) + current,
                format.grouped(run.step) + (f"/{format.grouped(total)}" if total else ""),
                format.loss(run_facts.loss(run)),
                format.short(run_facts.tokens_per_second(run)),
                format.age(moment.run_age(run)),
                str(run.epoch),
                f"{newest.name} ({format.age_since(newest.created)})" if newest else format.NONE,
                excerpt(claim.reason if claim.kind == CLAIM else _reason(members), MAX_REASON),
            )
        )
    return runs


def _problems(runs: Iterable[RunView]) -> list[str]:
    return [f"{run.run_id} on {run.host}: {run.problem}" for run in runs if run.problem]


def _condition(text: str | None) -> Condition | None:
    """Parse ``--filter``. None without one."""
    if not text or not text.strip():
        return None
    from midstream.listing import filter_parser, fleet_fields

    return filter_parser.parse(text, fleet_fields.RUNS, time.time())


def _columns(text: str | None, output: Output) -> list[Field]:
    """Read ``--columns``: names of fields, separated by commas. Empty without them."""
    from midstream.listing import fleet_fields

    fields = fleet_fields.RUNS
    valid: list[Field] = []
    for name in (text or "").split(",") if text is not None else ():
        field = fields.named(name.strip().lower())
        if field is None:
            raise UsageError(
                f"--columns: no such field {name.strip()!r}", f"fields are {', '.join(fields)}, config.NAME"
            )
        valid.append(field)
    if valid and output.as_json:
        raise UsageError("--columns chooses columns of a table, and --json has none", "--json has all values of a run")
    return valid


def _needs_facts(condition: Condition | None) -> bool:
    """Return whether a condition reads what hosts do not report by themselves."""
    return condition is not None and any(field.beyond_reports for field in condition.fields())


def _chosen_rows(moment: FleetMoment, condition: Condition | None, columns: Sequence[Field]) -> list[tuple[str, ...]]:
    """Return the heading and rows of a table with these fields of the runs."""
    runs = [run for run in moment.snapshot.current() if condition is None or condition.holds(run, moment)]
    titles = tuple(field.column.title if field.column is not None else field.name.upper() for field in columns)
    return [titles, *(tuple(field.shown(run, moment) for field in columns) for run in runs)]


def _filtered_runs(moment: FleetMoment, condition: Condition, output: Output) -> int:
    snapshot = moment.snapshot
    runs = tuple(run for run in snapshot.runs if condition.holds(run, moment))
    output.value({}, [*table(run_rows(snapshot, runs)), *_problems(runs)] if runs else "")
    if not runs:
        output.message(f"midstream: none of {count(snapshot.run_count, 'run')} passes the filter")
    return Exit.DONE


def _migrations() -> Callable[[Fleet], list[MigrationView]]:
    """Import what lists migrations, where there are some, while hosts connect."""
    if not migrations_directory().is_dir():
        return lambda _: []
    from midstream.migrate.journal.migration_directory import list_migrations

    return list_migrations


def _slices(fleet: Fleet, output: Output) -> None:
    if fleet.has_slices or fleet.google.projects:
        from midstream.headless.slice_listing import show_slices

        show_slices(fleet, output)


def _state(members: tuple[RunView, ...]) -> str:
    """Return the state of an attempt, and each of its processes in another state."""
    first, *others = members
    deviating = [
        f"process {member.status.process} on {member.host} {member.state}"
        for member in others
        if member.status is not None and member.state != first.state
    ]
    return ", ".join([first.state, *deviating])


def _reason(members: tuple[RunView, ...]) -> str:
    """Return why an attempt failed, or what it waits for."""
    failure = failure_of(members)
    return failure.reason if failure else members[0].remark


def _accelerators(accelerators: tuple[Any, ...]) -> str:
    kinds: dict[str, int] = {}
    for accelerator in accelerators:
        kinds[accelerator.kind] = kinds.get(accelerator.kind, 0) + 1
    return ", ".join(f"{count}x{kind}" for kind, count in kinds.items()) or "none"


def _remarks(machine: Machine) -> str:
    """Return facts that decide if a run can use the machine."""
    users = {f"{user.user or '?'} ({user.command or 'unseen'})": None for user in machine.users}
    words = (
        "no Python: monitoring only" if not machine.python else "",
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        f"used by {', '.join(users)}" if users else "",
        f"clock {machine.clock_skew:+.1f} s off" if abs(machine.clock_skew) >= 1 else "",
    )
    return ", ".join(filter(None, words))


def damage_line(view: MigrationView) -> str:
    """Return the damage of a migration's files and a hint, or an empty string."""
    from midstream.migrate.journal.migration_state import DAMAGED

    if not view.damage:
        return ""
    hint = "restore one of them from a backup" if view.state == DAMAGED and not view.newer else ""
    if view.open and not hint and not view.newer:
        hint = f"midstream --continue {view.migration} restores what it needs"
    return f"{view.migration}: {'; '.join(view.damage)}" + (f" ({hint})" if hint else "")
