"""Hosts, runs, migrations and checkpoints as lines of tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.migrate.model import DOWNTIME_PHASES, MigrationView
from midstream.tui import glyphs as signs
from midstream.tui import number_format, palette
from midstream.tui.filter import parse
from midstream.tui.glyphs import Glyphs
from midstream.tui.screen_state import World, hardware, latest, short_kind
from midstream.tui.styled_text import Text
from midstream.tui.widgets.bars import bar, spark
from midstream.tui.widgets.table import Column, Row, Rows
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import HostView, Machine, RunView

HOST_COLUMNS = (
    Column("HOST", widest=24),
    Column("LINK"),
    Column("ACCELERATORS", drop=1),
    Column("UTIL", right=True, drop=2),
    Column("MEM", right=True, drop=3),
    Column("CPU", right=True, drop=4),
    Column("DISK FREE", right=True, drop=3),
    Column("AGE", right=True),
    Column("RUNS", widest=200, rest=True),
)
RUN_COLUMNS = (
    Column("RUN", widest=32),
    Column("HOST", widest=20),
    Column("STATE"),
    Column("STEP", right=True),
    Column("LOSS", right=True),
    Column("TOK/S", right=True, drop=2),
    Column("AGE", right=True, drop=1),
    Column("DEVICES", drop=3),
)
MIGRATION_COLUMNS = (
    Column("RUN", widest=28),
    Column("FROM"),
    Column("TO"),
    Column("STATE"),
    Column("PHASE", drop=2),
    Column("CERTIFICATE", drop=1),
    Column("LEDGER", drop=6),
    Column("DOWN", right=True, drop=3),
    Column("AGE", right=True, drop=4),
    Column("ID", drop=5),
)
CHECKPOINT_COLUMNS = (
    Column("CHECKPOINT"),
    Column("STEP", right=True),
    Column("ATTEMPT", right=True, drop=3),
    Column("SIZE", right=True),
    Column("AGE", right=True),
    Column("STATE"),
    Column("PINNED", drop=2),
    Column("DIGEST", drop=1),
)


@dataclass(frozen=True)
class Listing:
    """One of the fleet's lists: its columns, the field behind each of them, and how a line is made.

    ``fields`` are in the columns' order: what one sorts and filters by, numbers as numbers."""

    columns: tuple[Column, ...]
    fields: Mapping[str, Callable[[Any, World], Any]]
    key: Callable[[Any], Hashable]
    row: Callable[[Any, World, Glyphs], Row]


def listed(
    listing: Listing, items: Sequence[Any], world: World, filter: str, sort: tuple[int, bool] | None
) -> list[Any]:
    """The items that a filter keeps, in order."""
    names = tuple(listing.fields)
    words = parse(filter, names)
    if words:

        def keeps(item: Any) -> bool:
            return all(word.holds(names, lambda name: listing.fields[name](item, world)) for word in words)

        items = [item for item in items if keeps(item)]
    if sort is None:
        return list(items)
    field = listing.fields[names[sort[0]]]

    valued = [(field(item, world), item) for item in items]
    known = [pair for pair in valued if pair[0] not in (None, "") and pair[0] == pair[0]]
    ordered = sorted(known, key=lambda pair: pair[0], reverse=sort[1])
    sorted_ones = {id(item) for _, item in known}
    return [item for _, item in ordered] + [item for item in items if id(item) not in sorted_ones]  # not known: last


def rows_of(listing: Listing, items: Sequence[Any], world: World, glyphs: Glyphs) -> Rows:
    """Lines of a table, each made when it comes in sight."""
    return Rows([listing.key(item) for item in items], lambda index: listing.row(items[index], world, glyphs))


def _host_row(host: HostView, world: World, glyphs: Glyphs) -> Row:
    glyph, colour = signs.link_state(glyphs, host.link)
    machine = host.machine
    stale = host.link != watch.LIVE
    accelerators = disk = number_format.NONE
    if machine is not None:
        count = len(machine.accelerators)
        accelerators = f"{count}{glyphs.times}{short_kind(machine.accelerators[0].kind)}" if count else "none"
        disk = number_format.size(machine.disk_free)
    age = number_format.age(world.host_age(host)) + (f" {glyphs.stale}" if stale and host.last_seen is not None else "")
    runs = ", ".join(world.training_on(host.name))
    cells = (
        host.name,
        (f"{glyph} {host.link}", colour),
        accelerators,
        number_format.percent(utilisation(host)),
        number_format.percent(_memory(host)),
        number_format.percent(machine.cpu_used if machine else None),
        disk,
        (age, palette.WAIT) if stale else age,
        (host.error, palette.BAD) if host.error else runs,
    )
    return Row(host.name, cells, dim=stale)


def utilisation(host: HostView) -> float | None:
    """Of its accelerators, 0..1; None where it does not say."""
    used = [item.utilization for item in host.machine.accelerators] if host.machine else []
    known = [value for value in used if value is not None]
    return sum(known) / len(known) if known else None


def _memory(host: HostView) -> float | None:
    machine = host.machine
    return machine.memory_used / machine.memory_total if machine and machine.memory_total else None


def _kinds(host: HostView) -> str:
    found = host.machine.accelerators if host.machine else ()
    return f"{len(found)}x{short_kind(found[0].kind)}" if found else ""


HOSTS = Listing(
    HOST_COLUMNS,
    {
        "host": lambda host, world: host.name,
        "link": lambda host, world: host.link,
        "accelerators": lambda host, world: _kinds(host),
        "util": lambda host, world: utilisation(host),
        "memory": lambda host, world: _memory(host),
        "cpu": lambda host, world: host.machine.cpu_used if host.machine else None,
        "disk": lambda host, world: host.machine.disk_free if host.machine else None,
        "age": lambda host, world: world.host_age(host),
        "run": lambda host, world: host.error or " ".join(world.training_on(host.name)),
    },
    lambda host: host.name,
    _host_row,
)


def _run_row(run: RunView, world: World, glyphs: Glyphs) -> Row:
    stale = world.is_stale(run.host)
    glyph, colour = signs.run_state(glyphs, run.state)
    if stale:
        colour = palette.WAIT
    total = run.status.num_train_steps if run.status else 0
    step = number_format.grouped(run.step) + (f"/{number_format.grouped(total)}" if total else "")
    age = number_format.age(world.run_age(run)) + (f" {glyphs.stale}" if stale else "")
    cells = (
        run.run_id,
        run.host,
        (f"{glyph} {run.state}", colour),
        step,
        number_format.loss(run.loss),
        number_format.short(latest(run, "throughput/tokens_per_second") if run.running else None),
        (age, palette.WAIT) if stale else age,
        hardware(run, glyphs.times),
    )
    return Row(run.run_id, cells, dim=stale)


RUNS = Listing(
    RUN_COLUMNS,
    {
        "run": lambda run, world: run.run_id,
        "host": lambda run, world: run.host,
        "state": lambda run, world: run.state,
        "step": lambda run, world: run.step,
        "loss": lambda run, world: run.loss,
        "tok/s": lambda run, world: latest(run, "throughput/tokens_per_second") if run.running else None,
        "age": lambda run, world: world.run_age(run),
        "devices": lambda run, world: hardware(run, "x"),
    },
    lambda run: run.run_id,
    _run_row,
)


def _migration_row(view: MigrationView, world: World, glyphs: Glyphs) -> Row:
    glyph, colour = signs.migration_state(glyphs, view.state)
    verdict = _verdict(view)
    cells = (
        view.plan.run_id,
        view.plan.source,
        view.plan.target,
        (f"{glyph} {view.state}", colour),
        view.phase,
        (verdict, {"certified": palette.GOOD, "failed": palette.BAD}.get(verdict, palette.DIM)),
        (_ledger_bar(view, glyphs), palette.ACCENT),
        number_format.seconds(view.downtime.total if view.downtime else None),
        number_format.age(world.now - view.plan.created if view.plan.created else None),
        view.migration,
    )
    return Row(view.migration, cells)


def _verdict(view: MigrationView) -> str:
    proof = view.certificate
    return number_format.NONE if proof is None else "certified" if proof.valid else "failed"


def _ledger_bar(view: MigrationView, glyphs: Glyphs) -> str:
    """What the downtime went to: one column for each part of the ledger, by its share of the longest."""
    if view.downtime is None:
        return ""
    parts = [view.downtime.measured.get(name, 0.0) for name in DOWNTIME_PHASES]
    longest = max([*parts, 1e-9])
    return spark(glyphs, [part / longest for part in parts], len(parts))


MIGRATIONS = Listing(
    MIGRATION_COLUMNS,
    {
        "run": lambda view, world: view.plan.run_id,
        "from": lambda view, world: view.plan.source,
        "to": lambda view, world: view.plan.target,
        "state": lambda view, world: view.state,
        "phase": lambda view, world: view.phase,
        "certificate": lambda view, world: _verdict(view),
        "downtime": lambda view, world: view.downtime.total if view.downtime else None,
        "down": lambda view, world: view.downtime.total if view.downtime else None,
        "age": lambda view, world: world.now - view.plan.created,
        "id": lambda view, world: view.migration,
    },
    lambda view: view.migration,
    _migration_row,
)


def checkpoint_rows(run: RunView, world: World, glyphs: Glyphs, verified: Mapping[str, str] = {}) -> list[Row]:
    """Newest first."""
    rows = []
    for point in sorted(run.checkpoints, key=lambda point: (-point.step, -point.attempt)):
        if point.damaged:
            state = (f"{glyphs.failed} damaged", palette.BAD)
        elif not point.complete:
            state = (f"{glyphs.busy} incomplete", palette.WAIT)
        elif not point.accepted:
            state = (f"{glyphs.failed} fenced off", palette.BAD)
        else:
            state = _verified(verified.get(point.name, ""), glyphs)
        cells = (
            point.name,
            number_format.grouped(point.step),
            str(point.attempt),
            number_format.size(point.size),
            number_format.age(world.now - point.created if point.created else None),
            state,
            "pinned" if point.pinned else "",
            number_format.digest(point.root_digest),
        )
        rows.append(Row(point.name, cells, dim=not point.complete))
    return rows


def _verified(state: str, glyphs: Glyphs) -> tuple[str, str]:
    """What this session's look at every object said."""
    if state == "whole":
        return f"{glyphs.passed} whole", palette.GOOD
    if state == "damaged":
        return f"{glyphs.failed} damaged", palette.BAD
    return (f"{glyphs.busy} {state}", palette.WAIT) if state else (f"{glyphs.passed} complete", palette.GOOD)


def describe_host(host: HostView, world: World, glyphs: Glyphs, width: int, history: Sequence[float] = ()) -> Text:
    """A host in a few lines: what it is, its gauges, its accelerators, its error."""
    text = Text(no_wrap=True)
    if host.error:
        glyph, colour = signs.link_state(glyphs, host.link)
        why = host.error.removeprefix(f"{host.name}: ")
        text.append(f"  {glyph} {number_format.folded(why, width, 4)}\n", colour)
    machine = host.machine
    if machine is None:
        return text.append(f"  {host.kind}: not heard of yet", palette.DIM)
    words = (
        machine.hostname,
        machine.platform,
        f"Python {machine.python}" if machine.python else "no Python",
        f"{machine.cpus} CPUs",
    )
    text.append("  " + f"  {glyphs.dot}  ".join(words) + "\n", palette.DIM)
    room = max(10, min(40, width - 44))
    gauges = [
        ("cpu", machine.cpu_used, number_format.percent(machine.cpu_used)),
        ("memory", _share(machine.memory_used, machine.memory_total), _of(machine.memory_used, machine.memory_total)),
        (
            "disk",
            _share(machine.disk_total - machine.disk_free, machine.disk_total),
            f"{number_format.size(machine.disk_free)} free of {number_format.size(machine.disk_total)}",
        ),
    ]
    if history:
        text.append(f"  {'busy':<10}", palette.DIM)
        text.append(spark(glyphs, history, room).rjust(room), palette.ACCENT)
        text.append(f" {number_format.percent(history[-1])} of its accelerators, over time\n", palette.TEXT)
    for item in machine.accelerators:
        if item.memory_total or item.utilization is not None:
            share = (
                item.utilization
                if item.utilization is not None
                else _share(item.memory_used or 0, item.memory_total or 0)
            )
            memory = f"  {_of(item.memory_used or 0, item.memory_total)}" if item.memory_total else ""
            busy = f"busy {number_format.percent(item.utilization)}" if item.utilization is not None else ""
            gauges.append((f"{item.index} {short_kind(item.kind)}", share, f"{busy}{memory}".strip()))
    for name, share, note in gauges:
        text.append(f"  {name:<10}", palette.DIM)
        text.append_text(bar(glyphs, share, room, palette.WAIT if share > 0.9 else palette.ACCENT))
        text.append(f" {note}\n", palette.TEXT)
    for line in _inventory(machine, glyphs):
        text.append(f"  {line}\n", palette.DIM)
    if abs(machine.clock_skew) >= 1:
        text.append(f"  its clock is {machine.clock_skew:+.1f} s off this machine's\n", palette.WAIT)
    text.rstrip()
    return text


def _inventory(machine: Machine, glyphs: Glyphs) -> list[str]:
    """What is known of a machine beyond its gauges: who uses it first, because that decides what can be done there."""
    lines = [
        f"pid {user.pid}  {user.user or '?'}  {user.command or 'a process that cannot be seen'}"
        for user in machine.users
    ]
    software = (
        machine.system,
        f"glibc {machine.glibc}" if machine.glibc else "",
        f"driver {machine.driver}" if machine.driver else "",
        f"CUDA {machine.cuda}" if machine.cuda else "",
        machine.cpu_model,
        "clock follows no server" if machine.clock_synchronized is False else "",
    )
    lines.append(f"  {glyphs.dot}  ".join(filter(None, software)))
    ports = [
        f"{port.device}:{port.port} {port.state}" + (f" {port.gigabits:.0f} Gb/s" if port.gigabits else "")
        for port in machine.infiniband
    ]
    lines.append(f"  {glyphs.dot}  ".join(["InfiniBand", *ports]) if ports else "")
    disks = [
        f"{disk.mount} {number_format.size(disk.free)} of {number_format.size(disk.total)}" for disk in machine.disks
    ]
    lines.append(f"  {glyphs.dot}  ".join(["free", *disks]) if len(disks) > 1 else "")
    return [line for line in lines if line]


def _share(used: float, total: float) -> float:
    return used / total if total else 0.0


def _of(used: float, total: float) -> str:
    return f"{number_format.size(used)} of {number_format.size(total)}"
