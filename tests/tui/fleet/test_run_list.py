"""The list of runs, computed in slices and by changes, against a list that reads all runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from midstream.listing import filter_parser
from midstream.listing.conditions import Condition
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.labels import Label, Labels
from midstream.tui.screens.fleet import run_column, run_list, table_rows
from midstream.tui.screens.fleet.run_list import RankedIds, RunList
from midstream.tui.screens.fleet.table_rows import RUNS, FoundItems
from midstream.tui.state.current_runs import DefaultOrder
from midstream.tui.state.saved_layout import ListLayout
from midstream.tui.state.screen_state import ScreenState
from midstream.watch.run_order import RunsByHost
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from support.tui.fleets import NOW

HOSTS = {f"host{number}": number for number in range(4)}
FILTERS = ("", "", "run", "run1", "run12", "host2 run", "step>20", "!state:failed", "age<5m", "~^run.*[13]$", "lost")
LAYOUTS = (
    ListLayout(),
    ListLayout(sort="step"),
    ListLayout(sort="host", descending=True),
    ListLayout(sort="age"),
    ListLayout(group="state"),
    ListLayout(group="tags", sort="step", descending=True),
    ListLayout(hide_finished=True),
    ListLayout(hide_finished=True, group="host"),
)


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list is large, and each slice has three runs."""
    monkeypatch.setattr(run_column, "SMALL", 0)
    monkeypatch.setattr(run_list, "SMALL", 0)
    monkeypatch.setattr(run_column, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(run_column, "TIMED_SHARE", float("inf"))
    monkeypatch.setattr(run_list, "SLICE", 0.0)
    monkeypatch.setattr(run_list, "PART", 3)
    monkeypatch.setattr(run_list, "REVISION_SHARE", float("inf"))


def view(host: str, run_id: str, chance: random.Random) -> RunView:
    state = chance.choice(["training", "finished", "failed", "stopped"])
    tags = chance.choice([[], ["lr"], ["b", "a"]])
    status = records.Status(
        state,
        chance.randrange(50),
        0,
        "boot",
        1,
        1,
        NOW - chance.randrange(600),
        run_id,
        message="lost disk",
        tags=tags,
    )
    return RunView(run_id, host, records.Fence(chance.randrange(1, 3), host), None, 1, status, chance.random() < 0.3)


def after(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    """A snapshot in which some runs have changed, and now and then some came or went."""
    before = snapshot.by_host
    hosts = list(before.hosts)
    for host, number in HOSTS.items():
        runs = {run.run_id: run for run in hosts[number]}
        for run_id in chance.sample(sorted(runs), min(len(runs), chance.randrange(3))):
            runs[run_id] = view(host, run_id, chance)
        if chance.random() < 0.2:
            run_id = f"run{chance.randrange(40)}"
            if runs.pop(run_id, None) is None:
                runs[run_id] = view(host, run_id, chance)
        hosts[number] = tuple(run for _, run in sorted(runs.items()))
    runs_now = RunsByHost(before.numbers, hosts)
    order = snapshot.order.updated(before, runs_now)
    return Snapshot(snapshot.version + 1, NOW, runs=runs_now, known_order=order)


def parsed(text: str) -> Condition | None:
    return filter_parser.parse(text, RUNS.fields, NOW) if text else None


def shown(found: FoundItems) -> tuple[list[object], int, list[object]]:
    return list(found.keys), found.count, [found.item(index) for index in range(len(found.keys))]


def complete(listed: RunList, state: ScreenState, condition: Condition | None, layout: ListLayout) -> FoundItems:
    """The list when all is computed; twice, since values that change with time may be of an earlier moment."""
    for _ in range(2):
        listed.update(state, condition, layout)
        while not listed.complete:
            listed.work()
    return listed._found


@pytest.mark.usefixtures("sliced")
@pytest.mark.parametrize("steady", [1, 6], ids=["every-refresh", "now-and-then"])
def test_list_by_changes_equals_one_of_all_runs(steady: int) -> None:
    """Filter, order and groups change while runs come, go and change, and while the list is incomplete."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    snapshot = Snapshot(0, NOW, runs=RunsByHost[RunView](HOSTS, ((),) * len(HOSTS)))
    listed, condition, layout = RunList(RUNS), None, LAYOUTS[0]
    for number in range(250):
        snapshot = after(snapshot, chance) if chance.random() < 0.8 else snapshot
        state = ScreenState(snapshot, (), NOW + number)
        if number % steady == 0:
            condition, layout = parsed(chance.choice(FILTERS)), chance.choice(LAYOUTS)
        if chance.random() < 0.4:
            listed.update(state, condition, layout)
            continue
        found = complete(listed, state, condition, layout)
        expected = table_rows.found_in(RUNS, state.current_runs, state, condition, layout)
        assert shown(found) == shown(expected), (number, condition and str(condition), layout)
        assert [found.keys.index(key) for key in found.keys] == list(range(len(found.keys)))


@pytest.mark.usefixtures("sliced")
def test_earlier_list_stays_until_the_next_one_is_complete() -> None:
    chance = random.Random(1)
    runs = tuple(view("host0", f"run{number:02}", chance) for number in range(40))
    state = ScreenState(Snapshot(0, NOW, runs=runs), (), NOW)
    listed = RunList(RUNS)
    before = shown(complete(listed, state, None, ListLayout()))
    assert (before[1], listed.progress) == (40, None)
    found = listed.update(state, parsed("run07"), ListLayout())
    assert shown(found) == before
    assert listed.progress is not None
    assert 0 < listed.progress < 1
    assert complete(listed, state, parsed("run07"), ListLayout()).count == 1
    assert listed.progress is None
    listed.update(state, parsed("run07"), ListLayout(sort="step"))
    assert listed.progress is not None
    assert 0 < listed.progress < 1, "an order is read too"


@pytest.mark.usefixtures("sliced")
def test_narrower_filter_reads_only_what_had_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    runs = tuple(view("host0", f"run{number:02}", chance) for number in range(40))
    state = ScreenState(Snapshot(0, NOW, runs=runs), (), NOW)
    listed, read = RunList(RUNS), list[int]()
    put = run_column.RunColumn._put

    def counted(self: run_column.RunColumn, ranks: Sequence[int]) -> None:
        read.extend(ranks)
        put(self, ranks)

    complete(listed, state, parsed("step>=0 run0"), ListLayout())
    monkeypatch.setattr(run_column.RunColumn, "_put", counted)
    assert complete(listed, state, parsed("step>=0 run07"), ListLayout()).count == 1
    assert sorted(read) == list(range(10))


@pytest.mark.parametrize(
    ("narrow", "wide", "holds"),
    [
        ("live00", "live", True),
        ("LIVE", "live", True),
        ("live", "live00", False),
        ("live step>3", "li", True),
        ("live step>3", "step>3", True),
        ("live step>3", "step>3 li", True),
        ("live", "live step>3", False),
        ("!live00", "!live", False),
        ("live OR a", "live", False),
        ("~live0", "~live", False),
        ("~live", "~live", True),
    ],
)
def test_narrowing_is_known_of_words_and_conjunctions(narrow: str, wide: str, holds: bool) -> None:
    one, other = parsed(narrow), parsed(wide)
    assert one is not None
    assert other is not None
    assert one.narrows(other) is holds


def test_default_order_is_computed_without_a_list() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(100):
        count = chance.randrange(1, 30)
        first = sorted(chance.sample(range(count), chance.randrange(count + 1)))
        order = DefaultOrder(first, count)
        expected = first + [number for number in range(count) if number not in first]
        assert list(order) == [order[place] for place in range(count)] == expected
        assert [order.index(number) for number in expected] == list(range(count))
        assert (count in order, order[-1], order[1:4]) == (False, expected[-1], expected[1:4])


def test_ids_by_rank_find_an_id_without_reading_all() -> None:
    keys = RankedIds(["a", "b", "c"], [2, 0])
    assert list(keys) == ["c", "a"] == keys[:]
    assert (keys.index("a"), "b" in keys, "d" in keys, 7 in keys) == (1, False, False, False)


def test_changed_copy_of_a_run_on_several_hosts_changes_its_row() -> None:
    """The reason of a failure is that of the host that failed first, which need not be the one that is listed."""
    chance = random.Random(1)
    status = records.Status("training", 3, 0, "boot", 1, 1, NOW, "run1", 1, 1, processes=2)
    first = replace(view("host0", "run1", chance), status=status, running=True)
    second = replace(first, host="host1", status=replace(status, process=1))
    before = Snapshot(0, NOW, runs=RunsByHost(HOSTS, ((first,), (second,), (), ())))
    failed = replace(second, running=False, status=replace(status, process=1, state="failed", message="disk is full"))
    now = Snapshot(1, NOW, runs=RunsByHost(HOSTS, ((first,), (failed,), (), ())), known_order=before.order)
    listed = RunList(RUNS)
    assert complete(listed, ScreenState(before, (), NOW), parsed("reason:disk"), ListLayout()).count == 0
    assert complete(listed, ScreenState(now, (), NOW), parsed("reason:disk"), ListLayout()).count == 1


@pytest.mark.usefixtures("sliced")
def test_labels_that_the_user_changes_are_searched_at_once() -> None:
    chance = random.Random(1)
    runs = tuple(view("host0", f"run{number:02}", chance) for number in range(40))
    snapshot = Snapshot(0, NOW, runs=runs)
    listed = RunList(RUNS)
    assert complete(listed, ScreenState(snapshot, (), NOW), parsed("keeper"), ListLayout()).count == 0
    labels = Labels().edited("run07", Label(note="the keeper"))
    named = ScreenState(snapshot, (), NOW, FleetFacts(labels))
    assert complete(listed, named, parsed("keeper"), ListLayout()).count == 1
