"""Metrics of a host over a day: resolutions, bounds, and what hostile hosts report."""

from __future__ import annotations

import itertools
import json
import math
import sys
from typing import Any

import pytest

from midstream.errors import RemoteError
from midstream.hosts.rpc.probe_lines import PROBE
from midstream.hosts.rpc.result_checks import line_of
from midstream.watch.snapshot_store import SnapshotStore
from midstream.watch.system_metrics import MAX_ACCELERATORS, METRICS
from midstream.watch.system_series import TIERS, SystemSeries

DAY = 86400
NOW = 1_800_000_000.0


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    known = {"utilization": 0.5, "memory_used": 40_000_000_000, "power": 300.0, "temperature": 60.0}
    return {"index": index, "kind": "NVIDIA H100", **known, **changes}


def filled(seconds: int, step: int = 1, **gauges: Any) -> SystemSeries:
    series = SystemSeries()
    for second in range(0, seconds, step):
        series.add(NOW + second, {"cpu_used": 0.25, **gauges})
    return series


def values(series: SystemSeries, metric: str, index: int = -1) -> list[float]:
    return list(series.read([(metric, index)])[1][0])


def test_point_is_the_mean_of_the_reports_in_it() -> None:
    series = SystemSeries()
    for second in range(11):
        series.add(NOW + second, {"cpu_used": second / 10, "memory_used": 10})
    times, [cpu, memory] = series.read([("cpu", -1), ("memory", -1)])
    assert list(times) == [NOW + 2.5, NOW + 7.5]
    assert list(cpu) == pytest.approx([0.2, 0.7])
    assert list(memory) == [10, 10]


def test_recent_points_are_fine_and_old_ones_coarse() -> None:
    times, [cpu] = filled(DAY + 7200).read([("cpu", -1)])
    assert list(times) == sorted(times)
    assert len(times) == len(cpu)
    assert set(cpu) == {0.25}
    gaps = [(NOW + DAY + 7200 - later, later - earlier) for earlier, later in itertools.pairwise(times)]
    for resolution, points in TIERS:
        recent = [gap for age, gap in gaps if age < resolution * points - 2 * resolution]
        assert max(recent) <= 1.5 * resolution
    assert DAY <= times[-1] - times[0] <= 1.2 * DAY


def test_size_is_bounded_after_days_of_full_reports() -> None:
    series = filled(int(1.5 * DAY), 5, accelerators=[gpu()])
    stored = sum(sys.getsizeof(column) for tier in series._tiers for column in tier.columns.values())
    assert len(series.stored_keys()) == 5
    assert stored / len(series.stored_keys()) < 7000, "bytes of a series"


def test_removed_accelerator_has_no_series_after_a_day() -> None:
    series = filled(100, 5, accelerators=[gpu()])
    assert ("power", 0) in series.stored_keys()
    for second in range(100, int(1.3 * DAY), 10):
        series.add(NOW + second, {"cpu_used": 0.25})
    assert series.stored_keys() == [("cpu", -1)]


def test_time_without_reports_interrupts_the_curve() -> None:
    series = filled(60)
    for second in range(1000, 1060):
        series.add(NOW + second, {"cpu_used": 0.75})
    cpu = values(series, "cpu")
    assert [value for value, _ in itertools.groupby(str(value) for value in cpu)] == ["0.25", "nan", "0.75"]


def test_clock_set_back_removes_points_of_the_future() -> None:
    series = filled(7200)
    for second in range(600):
        series.add(NOW + 3600 + second, {"cpu_used": 1.0})
    times, _ = series.read([("cpu", -1)])
    assert list(times) == sorted(times)
    assert times[-1] < NOW + 4200
    assert values(series, "cpu")[-1] == 1.0


def test_clock_adjusted_by_seconds_keeps_all_points() -> None:
    series = filled(600)
    before = len(values(series, "cpu"))
    series.add(NOW + 590, {"cpu_used": 0.25})
    series.add(NOW + 600, {"cpu_used": 0.25})
    assert len(values(series, "cpu")) >= before


@pytest.mark.parametrize("clock", [math.nan, math.inf, -math.inf])
def test_clock_that_is_no_number_adds_nothing(clock: float) -> None:
    series = SystemSeries()
    series.add(clock, {"cpu_used": 0.5})
    series.add(NOW, {"cpu_used": 0.5})
    assert series.stored_keys() == []


# ------------------------------------------------------------------------------------------------------ hostile hosts

BAD = [math.nan, math.inf, -math.inf, -1e9, 1e300, 2**63 - 1, "9", None, [], {}]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_implausible_value_is_left_out(bad: Any) -> None:
    fields = {metric.field: bad for metric in METRICS}
    series = filled(20, **{**fields, "cpu_used": bad, "accelerators": [gpu(0, **fields), bad]})
    assert series.stored_keys() == []
    assert series.version > 0, "the reports were read"


@pytest.mark.parametrize("accelerators", [None, 5, "x", {}, [None, 3, "x", []], [{"index": None}], [{"index": 10**9}]])
def test_malformed_accelerators_are_left_out(accelerators: Any) -> None:
    assert filled(20, accelerators=accelerators).stored_keys() == [("cpu", -1)]


def test_number_of_accelerators_with_series_is_limited() -> None:
    series = filled(20, accelerators=[gpu(index) for index in range(10_000)])
    assert len(series.stored_keys()) == 1 + 4 * MAX_ACCELERATORS
    assert len(filled(20, accelerators=[gpu(-1), gpu(True)]).stored_keys()) == 1


BEAT = {"event": "beat", "time": NOW, "cpu_used": 0.5, "memory_total": 9, "memory_used": 5, "disk_total": 9}


@pytest.mark.parametrize(
    "changes",
    [
        {"network_received": -1}, {"network_received": 1.5}, {"network_received": 2**63}, {"disk_read": math.nan},
        {"rdma_sent": "5"}, {"disk_written": True}, {"cpu_used": math.nan}, {"cpu_used": math.inf},
        {"time": math.nan}, {"accelerators": [gpu(0, power=math.nan)]}, {"accelerators": [gpu(-1)]},
    ],
    ids=str,
)  # fmt: skip
def test_beat_with_a_value_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    line_of("lab", "probe", PROBE, {**BEAT, "network_received": 2**40, "rdma_sent": None, "accelerators": [gpu()]})
    with pytest.raises(RemoteError, match="lab: probe: beat"):
        line_of("lab", "probe", PROBE, json.loads(json.dumps({**BEAT, **changes})))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "../../etc"},
        {"run": "x" * 200},
        {"started": math.nan},
        {"memory": -1},
        {"memory": 0.5},
        {"memory": 2**63},
    ],
    ids=str,
)
def test_process_with_a_malformed_field_is_refused(changes: dict[str, Any]) -> None:
    user = {"pid": 1, "user": "ann", "command": "python", "started": None, "memory": None, "run": ""}
    line_of("lab", "probe", PROBE, {"event": "inventory", "users": [user]})
    with pytest.raises(RemoteError, match="lab: probe: inventory"):
        line_of("lab", "probe", PROBE, {"event": "inventory", "users": [{**user, **changes}]})


@pytest.mark.parametrize("clocks", [[NOW, -1e18, 1e308, 0.0, NOW - 1e6], [1e300, -1e300, 5.0]], ids=str)
def test_clock_of_a_host_does_not_place_its_points(clocks: list[float]) -> None:
    now = [NOW]
    store = SnapshotStore({"lab": "ssh"}, clock=lambda: now[0])
    beat = {**BEAT, "disk_free": 1, "accelerators": []}
    for second in range(60):
        now[0] = NOW + second
        store.take("lab", {**beat, "time": clocks[second % len(clocks)]})
    times, [cpu] = store.snapshot().system["lab"].read([("cpu", -1)])
    assert list(times) == sorted(times)
    assert (times[0], times[-1]) == (NOW + 2.5, NOW + 52.5)
    assert set(cpu) == {0.5}


def test_number_of_processes_that_are_shown_is_limited() -> None:
    store = SnapshotStore({"lab": "ssh"})
    users = [{"pid": pid, "user": "eve", "command": "x"} for pid in range(10_000)]
    store.take("lab", {"event": "inventory", "users": users})
    store.take("lab", {**BEAT, "disk_free": 1, "accelerators": []})
    [host] = store.snapshot().hosts
    assert host.machine is not None
    assert len(host.machine.users) == 256


def test_fact_that_an_inventory_leaves_out_is_unchanged() -> None:
    store = SnapshotStore({"lab": "ssh"})
    store.take("lab", {"event": "inventory", "system": "Some Linux", "driver": "550"})
    store.take("lab", {"event": "inventory", "driver": "560"})
    store.take("lab", {**BEAT, "disk_free": 1, "accelerators": []})
    [host] = store.snapshot().hosts
    assert host.machine is not None
    assert (host.machine.system, host.machine.driver) == ("Some Linux", "560")
