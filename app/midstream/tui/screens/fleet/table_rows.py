"""Hosts, runs and migrations as rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from midstream import format
from midstream.listing import fleet_fields, run_facts
from midstream.listing.field_type import Fields
from midstream.listing.fleet_fields import NO_CERTIFICATE, certificate_state
from midstream.listing.run_facts import (
    hardware,
    memory_share,
    project,
    short_kind,
    started,
    tags,
    tokens_per_second,
    utilization,
)
from midstream.migrate.journal import migration_state
from midstream.tui.state.saved_layout import ListLayout
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.widgets.bars import spark
from midstream.tui.widgets.table import Column, Heading, Row, Rows
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import HostView, RunView
from midstream_core import records

if TYPE_CHECKING:
    from midstream.listing.conditions import Condition
    from midstream.migrate.journal.migration_view import MigrationView

Member = TypeVar("Member")  # an item, or what stands for it
HOST_COLUMNS = (
    Column("HOST", widest=24, field="host"),
    Column("LINK", field="link"),
    Column("ACCELERATORS", drop=1, field="accelerators"),
    Column("UTIL", right=True, drop=2, field="util"),
    Column("MEM", right=True, drop=3, field="memory"),
    Column("CPU", right=True, drop=4, field="cpu"),
    Column("DISK FREE", right=True, drop=3, field="disk"),
    Column("AGE", right=True, field="age"),
    Column("RUNS", widest=200, rest=True, field="run"),
)
RUN_COLUMNS = (
    Column("RUN", widest=32, field="run"),
    Column("HOST", widest=20, field="host"),
    Column("STATE", field="state"),
    Column("STEP", right=True, field="step"),
    Column("LOSS", right=True, field="loss"),
    Column("TOK/S", right=True, drop=2, field="tok/s"),
    Column("AGE", right=True, drop=1, field="age"),
    Column("DEVICES", drop=3, field="devices"),
    Column("START", drop=5, field="start", optional=True),
    Column("TAGS", drop=4, widest=30, field="tags", optional=True),
    Column("PROJECT", drop=6, widest=24, field="project", extra=True),
    Column("REASON", widest=200, rest=True, optional=True, field="reason"),
)
MIGRATION_COLUMNS = (
    Column("RUN", widest=28, field="run"),
    Column("FROM", field="from"),
    Column("TO", field="to"),
    Column("STATE", field="state"),
    Column("PHASE", drop=2, field="phase"),
    Column("CERTIFICATE", drop=1, field="certificate"),
    Column("PARTS", drop=7, field="downtime"),
    Column("DOWN", right=True, drop=3, field="downtime"),
    Column("AGE", right=True, drop=4, field="age"),
    Column("ID", entire=True, drop=5, field="id"),
)


@dataclass(frozen=True)
class Listing:
    """One list of the fleet screen.

    Attributes:
        columns: The columns of ``row``.
        fields: What filters, sort and groups read.
        key: Returns the key of an item.
        row: Returns the row of an item, with a cell for each column.
        groups: Fields that the list can be grouped by.
        finished: Returns True for an item that ended without a failure; None where items do not end.
    """

    columns: tuple[Column, ...]
    fields: Fields
    key: Callable[[Any], Hashable]
    row: Callable[[Any, ScreenState, Glyphs], Row]
    groups: tuple[str, ...] = ()
    finished: Callable[[Any], bool] | None = None

    def chosen(self, titles: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns with these titles, in the list's order; default ones without."""
        if not titles:
            return tuple(column for column in self.columns if not column.extra)
        return tuple(column for column in self.columns if column.title in titles or column is self.columns[0])


@dataclass(frozen=True)
class FoundItems:
    """The items that a list shows.

    Attributes:
        keys: Their keys in order, with the `Heading` of each group.
        count: How many items there are.
        item: Returns the item at an index of ``keys``, None for a heading.
    """

    keys: Sequence[Hashable]
    count: int
    item: Callable[[int], Any]


def found_in(
    listing: Listing,
    items: Sequence[object],
    screen_state: ScreenState,
    condition: Condition | None,
    layout: ListLayout,
) -> FoundItems:
    """Return the items that pass the condition, in the order of the layout.

    Args:
        listing: The list.
        items: Its items.
        screen_state: State of the screen.
        condition: The filter; None: all items pass.
        layout: Order and groups of the list, and whether finished items are hidden.
    """
    if layout.hide_finished and listing.finished is not None:
        items = [item for item in items if not listing.finished(item)]
    if condition is not None:
        items = [item for item in items if condition.holds(item, screen_state)]
    if (field := listing.fields.get(layout.sort)) is not None:
        values = {id(item): sort_value(field.get(item, screen_state)) for item in items}
        items = ordered(items, lambda item: values[id(item)], descending=layout.descending)
    groups: list[tuple[str | None, Sequence[object]]] = [(None, items)]
    if layout.group in listing.groups:
        of = listing.fields[layout.group]
        groups = grouped(items, lambda item: group_name(of.get(item, screen_state)), layout.group)
    keys, places = with_headings(groups, listing.key, None)
    return FoundItems(keys, len(items), places.__getitem__)


def sort_value(value: Any) -> object:
    """Return what a value is sorted by, None for an unknown one."""
    return value if value not in (None, "", ()) and value == value else None


def ordered(members: Sequence[Member], value: Callable[[Member], Any], *, descending: bool) -> Sequence[Member]:
    """Sort by a `sort_value`. Members without one are last."""
    parts = ordered_in_parts(members, value, descending=descending, part_size=max(1, len(members)))
    return next(members_sorted for members_sorted in parts if members_sorted is not None)


def ordered_in_parts(
    members: Sequence[Member], value: Callable[[Member], Any], *, descending: bool, part_size: int
) -> Iterator[list[Member] | None]:
    """Sort as `ordered` does; yield None after each part, then the result.

    Args:
        members: What is sorted.
        value: Returns the `sort_value` of a member.
        descending: Whether the greatest value is first.
        part_size: Members of a part. Merging sorted parts is a fifth of the work.
    """
    valued, others = list[Member](), list[Member]()
    for begin in range(0, len(members), part_size):
        some = members[begin : begin + part_size]
        with_value = [member for member in some if value(member) is not None]
        if len(with_value) < len(some):
            others += [member for member in some if value(member) is None]
        with_value.sort(key=value, reverse=descending)
        valued += with_value
        yield None
    valued.sort(key=value, reverse=descending)
    yield valued + others if others else valued


def group_name(value: Any) -> str:
    """Return the name of the group of items with this value; empty without a value."""
    return value if isinstance(value, str) else ", ".join(sorted(value))


def grouped(
    members: Iterable[Member], name: Callable[[Member], str], group: str
) -> list[tuple[str | None, Sequence[Member]]]:
    """Return (name, members) of each group by name.

    Members without a value are last.
    """
    groups: dict[str, list[Member]] = {}
    add_to_groups(groups, members, name)
    return named_groups(groups, group)


def add_to_groups(groups: dict[str, list[Member]], members: Iterable[Member], name: Callable[[Member], str]) -> None:
    """Append members to their groups."""
    for member in members:
        groups.setdefault(name(member), []).append(member)


def named_groups(groups: Mapping[str, list[Member]], group: str) -> list[tuple[str | None, Sequence[Member]]]:
    """Return (name, members) of each group by name; without a value is last."""
    named = sorted((title, of) for title, of in groups.items() if title)
    return [*named, *((f"no {group}", groups[""]) for _ in range("" in groups))]


def with_headings(
    groups: Iterable[tuple[str | None, Sequence[Member]]], key: Callable[[Member], Hashable], heading: Member
) -> tuple[list[Hashable], list[Member]]:
    """Return the keys of the members, and the members, each group below its heading.

    Args:
        groups: (name, members) of each group, None for a group without a heading.
        key: Returns the key of a member.
        heading: What is among the members in the place of a heading.
    """
    keys: list[Hashable] = []
    places: list[Member] = []
    for name, members in groups:
        if name is not None:
            keys.append(Heading(f"{name}  {len(members)}"))
            places.append(heading)
        keys += map(key, members)
        places += members
    return keys, places


def rows_of(listing: Listing, items: FoundItems, screen_state: ScreenState, glyphs: Glyphs, layout: ListLayout) -> Rows:
    """Return the rows of a table, each created when it becomes visible.

    Args:
        listing: The list.
        items: Its items.
        screen_state: State of the screen.
        glyphs: Characters to draw with.
        layout: Columns of the list.
    """
    shown = [listing.columns.index(column) for column in listing.chosen(layout.columns)]

    def make(index: int) -> Row:
        item = items.item(index)
        if item is None:
            return Row(items.keys[index], ())
        row = listing.row(item, screen_state, glyphs)
        return replace(row, cells=tuple(row.cells[column] for column in shown))

    return Rows(items.keys, make)


def _host_row(host: HostView, screen_state: ScreenState, glyphs: Glyphs) -> Row:
    glyph, colour = signs.link_state(glyphs, host.link)
    machine = host.machine
    stale = host.link != watch.LIVE
    accelerators = disk = format.NONE
    if machine is not None:
        count = len(machine.accelerators)
        accelerators = f"{count}{glyphs.times}{short_kind(machine.accelerators[0].kind)}" if count else "none"
        disk = format.size(machine.disk_free)
    age = format.age(screen_state.host_age(host)) + (f" {glyphs.stale}" if stale and host.last_seen is not None else "")
    runs = ", ".join(screen_state.training_on(host.name))
    cells = (
        host.name,
        (f"{glyph} {host.link}", colour),
        accelerators,
        format.percent(utilization(host)),
        format.percent(memory_share(host)),
        format.percent(machine.cpu_used if machine else None),
        disk,
        (age, palette.WAIT) if stale else age,
        (host.error, palette.BAD) if host.error else runs,
    )
    return Row(host.name, cells, dim=stale)


HOSTS = Listing(HOST_COLUMNS, fleet_fields.HOSTS, lambda host: host.name, _host_row, ("link", "accelerators"))


def _run_row(run: RunView, screen_state: ScreenState, glyphs: Glyphs) -> Row:
    stale = screen_state.is_stale(run.host)
    glyph, colour = signs.run_state(glyphs, run.state)
    if stale:
        colour = palette.WAIT
    total = run.status.num_train_steps if run.status else 0
    start = started(run)
    step = format.grouped(run.step) + (f"/{format.grouped(total)}" if total else "")
    age = format.age(screen_state.run_age(run)) + (f" {glyphs.stale}" if stale else "")
    cells = (
        run.run_id,
        run.host,
        (f"{glyph} {run.state}", colour),
        step,
        format.loss(run_facts.loss(run)),
        format.short(tokens_per_second(run)),
        (age, palette.WAIT) if stale else age,
        hardware(run, glyphs.times),
        format.moment(start, screen_state.now) if start else "",
        ", ".join(tags(run)),
        project(run),
        _reason(run, screen_state),
    )
    return Row(run.run_id, cells, dim=stale)


def _reason(run: RunView, screen_state: ScreenState) -> tuple[str, str]:
    """Return why a run failed, or what it waits for, and the colour."""
    failure = screen_state.failure(run)
    return (failure.reason, palette.BAD) if failure else (run.remark, palette.WAIT)


RUNS = Listing(
    RUN_COLUMNS,
    fleet_fields.RUNS,
    lambda run: run.run_id,
    _run_row,
    ("project", "tags", "host", "state"),
    lambda run: run.state in (records.FINISHED, records.STOPPED),
)


def _migration_row(view: MigrationView, screen_state: ScreenState, glyphs: Glyphs) -> Row:
    glyph, colour = signs.migration_state(glyphs, view.state)
    verdict = certificate_state(view)
    if verdict == NO_CERTIFICATE:
        verdict = format.NONE
    cells = (
        view.plan.run_id,
        view.plan.source,
        view.plan.target,
        (f"{glyph} {view.state}", colour),
        view.phase,
        (verdict, {"certified": palette.GOOD, "failed": palette.BAD, "void": palette.WAIT}.get(verdict, palette.DIM)),
        (_downtime_spark(view, glyphs), palette.ACCENT),
        format.seconds(view.downtime.total if view.downtime else None),
        format.age(screen_state.now - view.plan.identity.created if view.plan.identity.created else None),
        view.migration,
    )
    return Row(view.migration, cells)


def _downtime_spark(view: MigrationView, glyphs: Glyphs) -> str:
    """Draw the parts of the downtime as a sparkline, relative to the longest."""
    if view.downtime is None:
        return ""
    from midstream.migrate.stages import DOWNTIME_PHASES

    parts = [view.downtime.measured.get(name, 0.0) for name in DOWNTIME_PHASES]
    longest = max([*parts, 1e-9])
    return spark(glyphs, [seconds / longest for seconds in parts], len(parts))


MIGRATIONS = Listing(
    MIGRATION_COLUMNS,
    fleet_fields.MIGRATIONS,
    lambda view: view.migration,
    _migration_row,
    ("run", "from", "to", "state"),
    lambda view: view.state in (migration_state.COMPLETED, migration_state.ROLLED_BACK, migration_state.MOVED_ON),
)
LISTS = {"hosts": HOSTS, "runs": RUNS, "migrations": MIGRATIONS}
