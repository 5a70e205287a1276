"""The list of runs, kept up to date with what has changed.

With 100,000 runs, reading one field of all takes longer than a key may wait: a filter, an order and groups are computed
in slices of time, and afterwards again for the runs that have changed; so is the list that is made of them.
"""

from __future__ import annotations

import operator
import time
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, overload

from midstream.listing.field_type import Field, group_name
from midstream.tui.screens.fleet import table_rows
from midstream.tui.screens.fleet.run_column import SMALL, RunColumn
from midstream.tui.screens.fleet.table_rows import FoundItems, Listing
from midstream.tui.state.current_runs import CurrentRuns
from midstream.tui.state.saved_layout import ListLayout
from midstream.tui.state.screen_state import ScreenState

if TYPE_CHECKING:
    from collections.abc import Callable

    from midstream.listing.conditions import Condition

SLICE = 0.01  # seconds for which the list is computed before keys are handled
REVISION_SHARE = 0.1  # of the time, in which the list is made again for values that have changed
PART = 10_000  # runs that are sorted or grouped between two looks at the clock: a few milliseconds
TEXT, FILTER, FINISHED, SORT, GROUP = "text", "filter", "finished", "sort", "group"


@dataclass(frozen=True)
class _Query:
    """Filter and order of the list."""

    condition: Condition | None = None
    hide_finished: bool = False
    sort: str = ""
    descending: bool = False
    group: str = ""


class RunList:
    """Runs that pass the filter, in the order of the layout."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._runs = CurrentRuns()
        self._state = ScreenState()
        self._query = _Query()
        self._labels = self._state.facts.labels
        self._columns: dict[str, RunColumn] = {}
        self._found = FoundItems((), 0, self._runs.views.__getitem__)
        self._stale = True  # what is shown differs from what the columns say
        self._answered = True  # what is shown is of this query
        self._assembly: Iterator[FoundItems | None] | None = None  # of the next list
        self._spent = 0.0  # seconds of the last assembly
        self._again = 0.0  # moment from which on the list is made again for changed values

    @property
    def complete(self) -> bool:
        """Whether all runs are computed, and the list is made of them."""
        return self._assembly is None and not self._stale and all(column.complete for column in self._columns.values())

    @property
    def progress(self) -> float | None:
        """Share of the runs that are read for the filter, order and groups, 0..1.

        None if the list shows what was last requested.
        """
        shares = (column.share for name, column in self._columns.items() if name != TEXT)
        return None if self._answered else min(shares, default=1.0)

    def update(self, state: ScreenState, condition: Condition | None, layout: ListLayout) -> FoundItems:
        """Return the list at a newer state, as far as it is computed.

        Until it is complete, the earlier one stays. A list of at most `SMALL` runs is always complete.

        Args:
            state: State of the screen.
            condition: The filter; None: all runs pass.
            layout: Order and groups, and whether finished runs are hidden.
        """
        changes = self._runs.update(state.snapshot)
        if state.facts.labels != self._labels:  # only the user changes them: all texts are read again
            self._labels, self._query, self._columns = state.facts.labels, _Query(), {}
            self._stale, self._assembly = True, None
        self._state = state
        if changes.moves is not None:
            self._assembly = None  # it is of the earlier ranks
        self._stale |= changes.order or changes.moves is not None
        for column in self._columns.values():
            column.update(changes, len(self._runs), state)
        group = layout.group if layout.group in self._listing.groups else ""
        sort = layout.sort if self._listing.fields.named(layout.sort) is not None else ""
        self._take(_Query(condition, layout.hide_finished, sort, layout.descending, group))
        self.work()
        return self._found

    def work(self) -> bool:
        """Compute for about `SLICE`. Return whether the list has become another one."""
        deadline = time.perf_counter() + SLICE
        columns = self._columns
        read = (TEXT, FILTER) if FILTER in columns else ()  # a filter reads the texts
        ready = all(columns[name].work(deadline) for name in (*read, FINISHED, SORT, GROUP) if name in columns)
        if TEXT in columns and not read:
            columns[TEXT].work(deadline)
        shown = [column for name, column in columns.items() if name != TEXT]
        if not ready:
            return False
        if self._assembly is None:
            due = len(self._runs) <= SMALL or time.monotonic() >= self._again
            if not (self._stale or (due and any(column.changed for column in shown))):
                return False
            for column in shown:
                column.changed = False  # what changes from now on is for the next list
            self._stale, self._spent = False, 0.0
            self._assembly = self._assemble()
        return self._advance(self._assembly, deadline)

    def _advance(self, assembly: Iterator[FoundItems | None], deadline: float) -> bool:
        """Continue the assembly of the list. Return whether it is complete."""
        began, items = time.perf_counter(), None
        for items in assembly:
            if items is not None or (time.perf_counter() >= deadline and len(self._runs) > SMALL):
                break
        self._spent += time.perf_counter() - began
        if items is None:
            return False
        self._found, self._assembly, self._answered = items, None, True
        self._again = time.monotonic() + self._spent / REVISION_SHARE
        return True

    # ------------------------------------------------------------------------------------------ columns

    def _take(self, query: _Query) -> None:
        """Begin what a changed query needs.

        Words are searched in texts that are made before a filter is written.
        """
        before, self._query = self._query, query
        condition = query.condition
        if before != query:
            self._stale, self._answered, self._assembly = True, False, None
        if len(self._runs) > SMALL and TEXT not in self._columns:
            self._column(TEXT, True, self._text_reader())
        if condition != before.condition:
            self._filter(before.condition)
        self._column(FINISHED, query.hide_finished, self._is_finished)
        for name, key, now, then in (
            (SORT, query.sort, query.sort, before.sort),
            (GROUP, query.group, query.group, before.group),
        ):
            if now != then:
                self._columns.pop(name, None)
            if key:
                field = self._listing.fields.named(key)
                assert field is not None  # `update` has looked
                form = table_rows.sort_form(field) if name == SORT else group_name
                self._column(name, True, self._value(field, form), timed=field.timed)

    def _column(
        self, name: str, needed: bool, read: Callable[[int, ScreenState], object], *, timed: bool = False
    ) -> None:
        """Create a column that is wanted, and drop one that is not."""
        if not needed:
            self._columns.pop(name, None)
        elif name not in self._columns:
            self._columns[name] = RunColumn(read, timed=timed)
            self._columns[name].begin(len(self._runs), self._state)

    def _filter(self, before: Condition | None) -> None:
        """Begin to filter.

        Where the filter narrows the one before, only what had passed that is read again.
        """
        condition, former = self._query.condition, self._columns.pop(FILTER, None)
        if condition is None:
            return
        timed = any(field.timed for field in condition.fields())
        count, passed = len(self._runs), None
        if former is not None and before is not None and condition.narrows(before):
            for column in (self._columns.get(TEXT), former):  # take over what has just changed
                if column is not None:
                    column.work(time.perf_counter())
            passed = list(compress(range(count), former.values)) if former.complete else None
        column = self._columns[FILTER] = RunColumn(self._test(condition), timed=timed)
        column.begin(count, self._state, passed, False)

    def _text_reader(self) -> Callable[[int, ScreenState], str]:
        from midstream.listing.conditions import search_text, searched_fields

        fields = searched_fields(self._listing.fields.values())
        return lambda rank, state: search_text(fields, self._runs.views[rank], state)

    def _test(self, condition: Condition) -> Callable[[int, ScreenState], bool]:
        """Return a function that returns whether the run of a rank passes."""
        from midstream.listing.conditions import Search

        texts = self._columns.get(TEXT)
        if texts is None:
            return lambda rank, state: condition.holds(self._runs.views[rank], state)
        if isinstance(condition, Search) and condition.is_word:
            word = condition.folded
            return lambda rank, _: word in texts.values[rank]
        return lambda rank, state: condition.holds(self._runs.views[rank], state, texts.values[rank])

    def _is_finished(self, rank: int, _: ScreenState) -> bool:
        finished = self._listing.finished
        return finished is not None and finished(self._runs.views[rank])

    def _value(self, field: Field, form: Callable[[object], object]) -> Callable[[int, ScreenState], Any]:
        return lambda rank, state: form(field.get(self._runs.views[rank], state))

    # ------------------------------------------------------------------------------------------ result

    def _assemble(self) -> Iterator[FoundItems | None]:
        """Yield None after each part, then the list."""
        runs, columns = self._runs, self._columns
        views, ids = runs.views, runs.ids
        ranks = self._kept(runs.order)
        if SORT in columns or GROUP in columns:
            ranks = list(ranks)
        yield None
        if SORT in columns:
            value = columns[SORT].values.__getitem__
            for sorted_ranks in table_rows.ordered_in_parts(
                ranks, value, descending=self._query.descending, part_size=PART
            ):
                if sorted_ranks is not None:
                    ranks = sorted_ranks
                yield None
        count = len(ranks)
        if GROUP not in columns:
            keys: Sequence[Hashable] = RankedIds(ids, ranks)
        else:
            name, groups_of = columns[GROUP].values.__getitem__, dict[str, list[int]]()
            for begin in range(0, count, PART):
                table_rows.add_to_groups(groups_of, ranks[begin : begin + PART], name)
                yield None
            groups = table_rows.named_groups(groups_of, self._query.group)
            keys, ranks = table_rows.with_headings(groups, ids.__getitem__, -1)
        yield FoundItems(keys, count, lambda index: views[ranks[index]] if ranks[index] >= 0 else None)

    def _kept(self, order: Sequence[int]) -> Sequence[int]:
        """Return the ranks that pass the filter, in the default order."""
        columns = self._columns
        if FILTER not in columns and FINISHED not in columns:
            return order
        count = len(order)
        passes = bytearray(columns[FILTER].values) if FILTER in columns else bytearray(b"\1") * count
        if FINISHED in columns:
            passes = bytearray(map(operator.gt, passes, columns[FINISHED].values))
        first = [rank for rank in self._runs.running if passes[rank]]
        for rank in first:
            passes[rank] = 0
        return first + list(compress(range(count), passes))


class RankedIds(Sequence[Hashable]):
    """Ids of runs in the order of their ranks in a list, without a copy of them."""

    def __init__(self, ids: Sequence[str], ranks: Sequence[int]) -> None:
        self._ids = ids
        self._ranks = ranks

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> Hashable: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hashable]: ...
    def __getitem__(self, index: int | slice) -> Hashable | Sequence[Hashable]:
        if isinstance(index, slice):
            return [self._ids[rank] for rank in self._ranks[index]]
        return self._ids[self._ranks[index]]

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the index of an id. ValueError if it is not in the list."""
        rank = bisect_left(self._ids, value) if isinstance(value, str) else len(self._ids)
        if rank == len(self._ids) or self._ids[rank] != value:
            raise ValueError(value)
        return self._ranks.index(rank, start, len(self) if stop is None else stop)

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True
