"""Costs: sets of time, and the report of hosts, runs and migrations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.costs import intervals
from midstream.costs.cost_report import CostReport, make_report, shifted
from midstream.costs.prices import Prices
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.headless.show_costs import text
from midstream_host.runs.run_times import HostTimes, ProcessTimes
from support.tui import prepared_migrations

HOUR = 3600.0


NOW = 1000 * HOUR


PERIOD = (NOW - 100 * HOUR, NOW)


FLEET = parse_fleet(
    """
hosts:
  a: {type: local, price_per_hour: 2}
  b: {type: local, price_per_hour: 10}
  free: {type: local}
targets:
  pod: {type: tpu, project: p, zone: z-a, accelerator_type: v4-16, runtime_version: r, price_per_hour: 8}
""",
    "fleet.yaml",
)


def hours(begin: float) -> float:
    """Return the time that many hours after `NOW`."""
    return NOW + begin * HOUR


def process(run_id: str = "nano", attempt: int = 1, **values: object) -> ProcessTimes:
    words = {"process": 0, "launched": True, "running": False, "devices": 4, **values}
    return ProcessTimes(run_id=run_id, attempt=attempt, **words)  # type: ignore[arg-type]


def host_times(*processes: ProcessTimes, booted: float | None = None) -> HostTimes:
    return HostTimes(NOW, booted, list(processes), [])


def report(times: dict[str, HostTimes], fleet: Fleet = FLEET, **words: object) -> CostReport:
    return make_report(fleet, times, (), PERIOD, **words)  # type: ignore[arg-type]


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


@given(spans, spans)
def test_intervals_agree_with_sets_of_seconds(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def members(found: intervals.Intervals | list[tuple[int, int]]) -> set[int]:
        return {second for begin, end in found for second in range(int(begin), int(end))}

    a, b = intervals.union(first), intervals.union(second)
    assert members(a) == members(first)
    assert intervals.seconds(a) == len(members(first))
    assert members(intervals.union(a, b)) == members(first) | members(second)
    assert members(intervals.common(a, b)) == members(first) & members(second)
    assert members(intervals.without(a, b)) == members(first) - members(second)


def test_host_cost_is_training_preparing_and_idle() -> None:
    one = process(started=hours(-10), ended=hours(-4), first_step=hours(-9), last_step=hours(-5))
    (host,) = report({"a": host_times(one, booted=hours(-20))}).hosts
    assert (host.on / HOUR, host.training / HOUR, host.preparing / HOUR, host.idle / HOUR) == (20, 4, 2, 14)
    assert (host.cost, host.idle_cost, host.accelerators) == (40, 28, 4)
    assert host.known_since == hours(-20)


def test_time_before_the_boot_and_before_the_period() -> None:
    """Before the boot only processes count; nothing counts before the period."""
    early = process(attempt=1, started=hours(-150), ended=hours(-90), first_step=hours(-149), last_step=hours(-91))
    late = process(attempt=2, started=hours(-5), running=True, first_step=hours(-4), last_step=hours(0))
    found = report({"a": host_times(early, late, booted=hours(-6)), "b": host_times(booted=hours(-6))})
    host = found.hosts[0]
    assert (host.on / HOUR, host.training / HOUR, host.idle / HOUR) == (16, 13, 1)
    assert [line for line in found.not_known if "booted" in line] == [
        "a, b: booted 6h ago; of the time before, only the hours of processes count"
    ]


def test_run_with_records_on_two_hosts_counts_each_host_once() -> None:
    before = process(host="a", started=hours(-10), ended=hours(-6), first_step=hours(-10), last_step=hours(-6))
    copied = replace(before, launched=False, started=None, ended=hours(-6))
    after = process(attempt=2, host="b", started=hours(-7), running=True, first_step=hours(-6), last_step=hours(-1))
    found = report({"a": host_times(before, booted=hours(-10)), "b": host_times(copied, after, booted=hours(-7))})
    (run,) = found.runs
    assert run.hosts == ("a", "b")
    assert (run.processes / HOUR, run.training / HOUR) == (11, 9)
    assert run.cost == 4 * 2 + 7 * 10
    assert found.cost == 10 * 2 + 7 * 10
    assert found.idle_cost == 6 * 2


def test_unreachable_host_counts_by_copies_of_its_records() -> None:
    copied = process(host="a", launched=False, ended=hours(-6), first_step=hours(-10), last_step=hours(-6))
    found = report({"b": host_times(copied, booted=hours(-1))}, not_known=("a: connection refused",))
    a = next(host for host in found.hosts if host.host == "a")
    assert (a.on / HOUR, a.training / HOUR, a.cost, a.known_since) == (4, 4, 8, None)
    assert "a: connection refused" in found.not_known
    assert "a: only what copies of its runs' records contain" in found.not_known


def test_processes_of_a_group_train_while_process_0_has_metrics() -> None:
    first = process(host="a", started=hours(-3), ended=hours(-1), first_step=hours(-2), last_step=hours(-1))
    second = process(process=1, host="b", started=hours(-3), ended=hours(-1))
    shared = host_times(first, second, booted=hours(-3))  # both hosts see both records in a shared root
    found = report({"a": shared, "b": shared})
    assert [host.training / HOUR for host in found.hosts] == [1, 1]
    assert found.runs[0].cost == 2 * 2 + 2 * 10


def test_slice_is_on_since_creation_and_costs_its_targets_price() -> None:
    copied = [
        process(process=number, host=f"pod-{number}", launched=False, first_step=hours(-4), last_step=hours(-2))
        for number in range(2)
    ]
    found = report({"a": host_times(*copied, booted=hours(-5))}, created={"a": hours(-50)})
    costs = {host.host: host.cost for host in found.hosts}
    assert costs == {"a": 100, "pod-0": 8, "pod-1": 8}
    assert Prices(FLEET, ()).group(("a", "free")) is None


def test_hosts_without_a_price_have_hours_and_are_named() -> None:
    found = report({"free": host_times(booted=hours(-8)), "a": host_times(booted=hours(-1))})
    lines = text(found)
    assert any(line.startswith("free") and "8.00 h" in line for line in lines)
    assert "no price_per_hour in the fleet file: free" in lines
    assert found.cost == 2
    assert "prices are those of the fleet file now" in lines[0]


def test_times_of_a_clock_that_is_ahead_are_shifted() -> None:
    ahead = host_times(process(started=NOW + 50, ended=NOW + 90), booted=NOW + 10)
    moved = shifted(replace(ahead, now=NOW + 100), NOW)
    assert (moved.booted, moved.processes[0].started, moved.processes[0].ended) == (NOW - 90, NOW - 50, NOW - 10)
    assert moved.processes[0].first_step is None


def test_migration_costs_target_to_prepare_and_both_in_downtime() -> None:
    view = prepared_migrations.certified()
    begun = view.plan.identity.created
    found = make_report(FLEET, {}, [view], (begun - 1, begun + 1e6))
    (one,) = found.migrations
    assert view.downtime is not None
    assert view.downtime.last_step_ended is not None
    assert one.preparation == pytest.approx(view.downtime.last_step_ended - begun)
    assert one.downtime == pytest.approx(view.downtime.total)
    assert make_report(FLEET, {}, [view], (begun + 1, begun + 2)).migrations == ()
