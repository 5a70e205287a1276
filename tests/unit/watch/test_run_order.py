"""Order of runs and changes between snapshots, against what all runs say."""

from __future__ import annotations

import random

import pytest

from midstream.watch.run_order import RunOrder, RunsByHost
from midstream.watch.snapshot import RunView, Snapshot

HOSTS = {f"host{number}": number for number in range(5)}


def view(host: str, run_id: str, *, running: bool = False) -> RunView:
    return RunView(run_id, host, None, None, 1, None, running)


def changed(before: RunsByHost[RunView], chance: random.Random) -> RunsByHost[RunView]:
    """Some hosts have lost and gained runs, or reported others of the same ids."""
    hosts = []
    for host, number in HOSTS.items():
        runs = {run.run_id: run for run in before.hosts[number]}
        for _ in range(chance.randrange(3)):
            name = f"run{chance.randrange(12):02}"
            if chance.random() < 0.4:
                runs.pop(name, None)
            else:
                runs[name] = view(host, name, running=chance.random() < 0.5)
        same = list(runs.values()) == list(before.hosts[number])
        hosts.append(before.hosts[number] if same else tuple(run for _, run in sorted(runs.items())))
    return RunsByHost(HOSTS, hosts)


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def test_updated_order_equals_a_new_one(chance: random.Random) -> None:
    runs = RunsByHost[RunView](HOSTS, ((),) * len(HOSTS))
    order = RunOrder.of(runs)
    for _ in range(300):
        after = changed(runs, chance)
        order, runs = order.updated(runs, after), after
        expected: dict[str, list[int]] = {}
        for run in runs:
            expected.setdefault(run.run_id, []).append(HOSTS[run.host])
        assert order.ids == sorted(expected)
        assert {run_id: list(order.hosts(run_id)) for run_id in order.ids} == expected
        assert order.several == {run_id for run_id, found in expected.items() if len(found) > 1}
        assert [order.rank(run_id) for run_id in order.ids] == list(range(len(order.ids)))


def test_order_stays_while_no_run_comes_or_goes() -> None:
    before = RunsByHost(HOSTS, ((view("host0", "a"),), (), (), (), (view("host4", "a"), view("host4", "b"))))
    after = RunsByHost(HOSTS, ((view("host0", "a", running=True),), *before.hosts[1:]))
    order = RunOrder.of(before)
    assert order.updated(before, after) is order
    assert (order.rank("aa"), order.hosts("aa")) == (None, ())


def test_runs_by_host_are_a_sequence(chance: random.Random) -> None:
    runs = changed(changed(RunsByHost[RunView](HOSTS, ((),) * len(HOSTS)), chance), chance)
    flat = [run for views in runs.hosts for run in views]
    assert (list(runs), len(runs), [runs[place] for place in range(len(runs))]) == (flat, len(flat), flat)
    assert [runs[-1 - place] for place in range(len(runs))] == flat[::-1]
    assert (runs[1:3], runs == tuple(flat)) == (flat[1:3], True)
    with pytest.raises(IndexError):
        runs[len(runs)]


def test_changes_are_the_copies_that_differ(chance: random.Random) -> None:
    runs = RunsByHost[RunView](HOSTS, ((),) * len(HOSTS))
    for version in range(300):
        after = changed(runs, chance)
        one, two = Snapshot(version, 0.0, runs=runs), Snapshot(version + 1, 0.0, runs=after)
        known = {run.key: run for run in runs}
        expected = [(known.get(run.key), run) for run in after if known.get(run.key) is not run]
        found = two.changes_since(one)
        assert [(id(old), id(new)) for old, new in found] == [(id(old), id(new)) for old, new in expected]
        runs = after


def test_changes_of_snapshots_of_other_hosts_are_found_by_name() -> None:
    run, other = view("host1", "a"), view("host2", "b")
    before = Snapshot(0, 0.0, runs=(run,))
    assert Snapshot(1, 0.0, runs=(other, run)).changes_since(before) == [(None, other)]


def test_views_without_an_order_are_found_by_host() -> None:
    runs = (view("b", "two"), view("a", "one"), view("b", "one"))
    snapshot = Snapshot(0, 0.0, runs=runs)
    assert snapshot.runs_on("b") == (runs[2], runs[0])
    assert snapshot.copies("one") == (runs[2], runs[1])
    assert [run.run_id for run in snapshot.current()] == ["one", "two"]
    assert snapshot.runs_on("c") == ()
