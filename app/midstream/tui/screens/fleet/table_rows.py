"""Hosts, runs and migrations as rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from midstream import format
from midstream.listing import fleet_fields, run_facts
from midstream.listing.column import Column
from midstream.listing.field_type import Field, Fields, group_name
from midstream.listing.filter_values import Kind
from midstream.listing.fleet_fields import CONFIG, NO_CERTIFICATE, certificate_state
from midstream.listing.run_facts import hardware, short_kind
from midstream.migrate.journal import migration_state
from midstream.tui.state.saved_layout import ListLayout
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.widgets.bars import spark
from midstream.tui.widgets.table import Heading, Row, Rows
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import HostView, RunView
from midstream_core import records

if TYPE_CHECKING:
    from midstream.listing.conditions import Condition
    from midstream.migrate.journal.migration_view import MigrationView

Member = TypeVar("Member")  # an item, or what stands for it
Cell = str | tuple[str, str]  # a text, or (text, colour)
Item = Any  # a host, a run or a migration
Draw = Callable[[Item, ScreenState, Glyphs], Cell]
PROGRESS_WIDTH = 8  # cells


@dataclass(frozen=True)
class Listing:
    """One list of the fleet screen.

    Attributes:
        fields: Its columns, and what filters, sort and groups read.
        key: Returns the key of an item.
        draw: Cells with a colour or a picture, by field; another cell is the text of its field.
        is_dim: Returns whether the row of an item is dim.
        groups: Fields that the list can be grouped by.
        finished: Returns True for an item that ended without a failure; None where items do not end.
    """

    fields: Fields
    key: Callable[[Item], Hashable]
    draw: Mapping[str, Draw]
    is_dim: Callable[[Item, ScreenState], bool] = lambda *_: False
    groups: tuple[str, ...] = ()
    finished: Callable[[Item], bool] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in order, without those of configurations."""
        return tuple(field.column for field in self.fields.values() if field.column is not None)

    def chosen(self, titles: Sequence[str]) -> tuple[Column, ...]:
        """Return the columns with these titles, or the default ones without titles.

        Values of configurations are before the column that takes the remaining width.
        """
        if not titles:
            return tuple(column for column in self.columns if not column.extra)
        listed = [column for column in self.columns if column.title in titles or column is self.columns[0]]
        named = [self.fields.named(title) for title in titles if title.startswith(CONFIG)]
        config = [field.column for field in named if field is not None and field.column is not None]
        rest = [column for column in listed if column.rest]
        return (*(column for column in listed if not column.rest), *config, *rest)

    def row(self, item: object, columns: Iterable[Column], screen_state: ScreenState, glyphs: Glyphs) -> Row:
        """Return the row of an item, with a cell for each column."""
        cells = list[Cell]()
        for column in columns:
            draw, field = self.draw.get(column.field), self.fields.named(column.field)
            assert field is not None  # a column is of a field
            cells.append(field.shown(item, screen_state) if draw is None else draw(item, screen_state, glyphs))
        return Row(self.key(item), tuple(cells), dim=self.is_dim(item, screen_state))


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
    item: Callable[[int], Item]


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
    if (field := listing.fields.named(layout.sort)) is not None:
        form = sort_form(field)
        values = {id(item): form(field.get(item, screen_state)) for item in items}
        items = ordered(items, lambda item: values[id(item)], descending=layout.descending)
    groups: list[tuple[str | None, Sequence[object]]] = [(None, items)]
    if layout.group in listing.groups:
        of = listing.fields[layout.group]
        groups = grouped(items, lambda item: group_name(of.get(item, screen_state)), layout.group)
    keys, places = with_headings(groups, listing.key, None)
    return FoundItems(keys, len(items), places.__getitem__)


def sort_value(value: object) -> object:
    """Return what a value is sorted by, None for an unknown one."""
    return value if value not in (None, "", ()) and value == value else None


def sort_form(field: Field) -> Callable[[object], object]:
    """Return what makes a sort value of a field's value.

    Numbers come before texts where a field may have both.
    """
    return _sort_value_of_any if field.kind is Kind.ANY else sort_value


def _sort_value_of_any(value: object) -> object:
    value = sort_value(value)
    return None if value is None else (isinstance(value, str), value)


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
    columns = listing.chosen(layout.columns)

    def make(index: int) -> Row:
        item = items.item(index)
        if item is None:
            return Row(items.keys[index], ())
        return listing.row(item, columns, screen_state, glyphs)

    return Rows(items.keys, make)


def _link(host: HostView, _: ScreenState, glyphs: Glyphs) -> Cell:
    glyph, colour = signs.link_state(glyphs, host.link)
    return f"{glyph} {host.link}", colour


def _accelerators(host: HostView, _: ScreenState, glyphs: Glyphs) -> Cell:
    if host.machine is None:
        return format.NONE
    items = host.machine.accelerators
    return f"{len(items)}{glyphs.times}{short_kind(items[0].kind)}" if items else "none"


def _host_age(host: HostView, screen_state: ScreenState, glyphs: Glyphs) -> Cell:
    age, stale = format.age(screen_state.host_age(host)), host.link != watch.LIVE
    if not stale:
        return age
    return (f"{age} {glyphs.stale}" if host.last_seen is not None else age), palette.WAIT


def _host_runs(host: HostView, screen_state: ScreenState, _: Glyphs) -> Cell:
    return (host.error, palette.BAD) if host.error else ", ".join(screen_state.training_on(host.name))


HOSTS = Listing(
    fleet_fields.HOSTS,
    lambda host: host.name,
    {"link": _link, "accelerators": _accelerators, "age": _host_age, "run": _host_runs},
    lambda host, _: host.link != watch.LIVE,
    ("link", "accelerators"),
)


def _run_state(run: RunView, screen_state: ScreenState, glyphs: Glyphs) -> Cell:
    glyph, colour = signs.run_state(glyphs, run.state)
    return f"{glyph} {run.state}", palette.WAIT if screen_state.is_stale(run.host) else colour


def _run_age(run: RunView, screen_state: ScreenState, glyphs: Glyphs) -> Cell:
    age = format.age(screen_state.run_age(run))
    return (f"{age} {glyphs.stale}", palette.WAIT) if screen_state.is_stale(run.host) else age


def _progress(run: RunView, screen_state: ScreenState, glyphs: Glyphs) -> Cell:
    """Draw the share of the steps that are done as a bar with a percent."""
    share = run_facts.progress(run)
    if share is None:
        return ""
    dim = screen_state.is_stale(run.host) or not run.running
    full = round(share * PROGRESS_WIDTH)
    drawn = glyphs.full * full + glyphs.empty * (PROGRESS_WIDTH - full)
    return f"{drawn} {format.percent(share):>4}", palette.DIM if dim else palette.ACCENT


def _time_left(run: RunView, screen_state: ScreenState, _: Glyphs) -> Cell:
    seconds = None if screen_state.is_stale(run.host) else run_facts.seconds_left(run)
    return "" if seconds is None else format.seconds(seconds)


def _loss_curve(run: RunView, screen_state: ScreenState, glyphs: Glyphs) -> Cell:
    """Draw the losses as a sparkline.

    The first one, of random weights, is drawn at the end of the scale.
    """
    points = screen_state.facts.points(run)
    if len(points) < 2:
        return ""
    low, high = min(points), max(points[1:])
    scale = high - low or 1.0
    return spark(glyphs, [(point - low) / scale for point in points], len(points)), palette.ACCENT


def _reason(run: RunView, screen_state: ScreenState, _: Glyphs) -> Cell:
    """Return why a run failed, or what it waits for, and the colour."""
    failure = screen_state.failure(run)
    return (failure.reason, palette.BAD) if failure else (run.remark, palette.WAIT)


RUNS = Listing(
    fleet_fields.RUNS,
    lambda run: run.run_id,
    {
        "state": _run_state,
        "age": _run_age,
        "progress": _progress,
        "left": _time_left,
        "trend": _loss_curve,
        "devices": lambda run, _, glyphs: hardware(run, glyphs.times),
        "reason": _reason,
    },
    lambda run, screen_state: screen_state.is_stale(run.host),
    ("project", "tags", "host", "state"),
    lambda run: run.state in (records.FINISHED, records.STOPPED),
)


def _migration_state(view: MigrationView, _: ScreenState, glyphs: Glyphs) -> Cell:
    glyph, colour = signs.migration_state(glyphs, view.state)
    return f"{glyph} {view.state}", colour


def _verdict(view: MigrationView, _: ScreenState, __: Glyphs) -> Cell:
    verdict = certificate_state(view)
    colours = {"certified": palette.GOOD, "failed": palette.BAD, "void": palette.WAIT}
    return (format.NONE if verdict == NO_CERTIFICATE else verdict), colours.get(verdict, palette.DIM)


def _downtime_spark(view: MigrationView, _: ScreenState, glyphs: Glyphs) -> Cell:
    """Draw the parts of the downtime as a sparkline, relative to the longest."""
    if view.downtime is None:
        return ""
    from midstream.migrate.stages import DOWNTIME_PHASES

    parts = [view.downtime.measured.get(name, 0.0) for name in DOWNTIME_PHASES]
    longest = max([*parts, 1e-9])
    return spark(glyphs, [seconds / longest for seconds in parts], len(parts)), palette.ACCENT


MIGRATIONS = Listing(
    fleet_fields.MIGRATIONS,
    lambda view: view.migration,
    {"state": _migration_state, "certificate": _verdict, "parts": _downtime_spark},
    groups=("run", "from", "to", "state"),
    finished=lambda view: (
        view.state in (migration_state.COMPLETED, migration_state.ROLLED_BACK, migration_state.MOVED_ON)
    ),
)
LISTS = {"hosts": HOSTS, "runs": RUNS, "migrations": MIGRATIONS}
