"""System metrics as curves: of a host over time, of a run over its steps and time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from midstream.tui.screens.fleet.host_screen import HostScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.state.series_cache import STEP, TIME, TOKENS, SeriesCache
from midstream.tui.state.system_curves import SystemCurves
from midstream.tui.widgets.curve import CurveView
from midstream.watch.machine import AcceleratorUser
from midstream.watch.run_hosts import hosts_of
from midstream.watch.snapshot import STALE, RunView, Snapshot
from midstream.watch.system_series import SystemSeries
from support.tui import fleets
from support.tui.fleets import NOW
from support.tui.prepared_actions import PreparedSnapshots
from support.tui.screens import app_over, screen_text, settle

SECONDS = 250  # of the rows of a run of 1204 steps


def curves() -> SystemCurves:
    return SystemCurves(SeriesCache())


def one_host(run: RunView | None = None, **changes: object) -> Snapshot:
    host = fleets.host("small", machine=fleets.machine("small", 2, "NVIDIA H100", **changes))
    return fleets.snapshot([host], [run or fleets.run()], system={"small": fleets.system_series(600)})


def moved() -> Snapshot:
    """A run that migrated from ``small`` to ``large``; both hosts were watched all the time."""
    hosts = [fleets.host("small", kind="NVIDIA H100"), fleets.host("large", accelerators=4, kind="NVIDIA H100")]
    system = {
        "small": fleets.system_series(600, busy=0.5),
        "large": fleets.system_series(600, accelerators=4, busy=1.0),
    }
    source = replace(fleets.run(running=False), fence=None)
    return fleets.snapshot(hosts, [source, fleets.moved_run()], system=system)


# --------------------------------------------------------------------------------------------------------- series


def test_host_has_a_series_of_its_own_and_one_per_accelerator() -> None:
    shown = one_host()
    found = curves().of_host(shown, "small", "system/utilization")
    assert [each.name for each in found] == ["0", "1"]
    assert [each.series.last for each in found] == pytest.approx([90.0, 80.0])
    [memory] = curves().of_host(shown, "small", "system/memory")
    assert (memory.name, memory.series.last) == ("", 32.0)
    assert NOW - 600 <= memory.series.x[0] < memory.series.x[-1] <= NOW
    assert curves().of_host(shown, "absent", "system/memory") == ()
    assert curves().of_host(shown, "small", "train/loss") == ()


def test_names_are_those_with_values_accelerators_first() -> None:
    names = curves().names_of_host(one_host(), "small")
    assert names[:5] == [
        "system/utilization", "system/accelerator_memory", "system/power", "system/temperature", "system/cpu"
    ]  # fmt: skip
    assert "system/rdma_received" not in names, "the host has no such device"
    series = SystemSeries()
    assert curves().names_of_host(fleets.snapshot([], [], system={"a": series}), "a") == []


def test_run_has_the_values_of_its_host_while_it_trained() -> None:
    shown = one_host()
    [run] = shown.runs
    series = curves().of_run(shown, run, "system/power", TIME)
    assert set(series.values._values) == {700.0}, "the sum of its accelerators"
    assert 0 <= series.x[0] < 10
    assert SECONDS - 10 < series.x[-1] <= SECONDS + 5, "it is running: up to now"
    busy = curves().of_run(shown, run, "system/utilization", TIME)
    assert busy.last == pytest.approx(85.0), "the mean of its accelerators"


def test_steps_are_aligned_by_the_times_of_the_rows() -> None:
    shown = one_host()
    [run] = shown.runs
    over_time = curves().of_run(shown, run, "system/cpu", TIME)
    over_steps = curves().of_run(shown, run, "system/cpu", STEP)
    assert len(over_steps) in (len(over_time), len(over_time) - 1), "none after the last step"
    for second, step in zip(over_time.x, over_steps.x, strict=False):
        assert step == pytest.approx(second / 0.21, abs=0.01), "a row every 0.21 s"
    assert list(over_steps.values._values) == list(over_time.values._values)[: len(over_steps)]


def test_tokens_are_aligned_and_no_tokens_make_no_curve() -> None:
    rows = [dict(row, **{"throughput/total_tokens": 512 * row["global_step"]}) for row in fleets.rows(1204)]
    shown = one_host(fleets.run(curve=rows))
    [run] = shown.runs
    steps, tokens = (curves().of_run(shown, run, "system/cpu", axis) for axis in (STEP, TOKENS))
    assert list(tokens.x) == pytest.approx([512 * step for step in steps.x])
    without = one_host()
    assert len(curves().of_run(without, without.runs[0], "system/cpu", TOKENS)) == 0


def test_migrated_run_has_the_values_of_each_attempts_host() -> None:
    shown = moved()
    run = shown.copies("nano")[0]
    assert (hosts_of(shown, run, 1), hosts_of(shown, run, 2)) == (["small"], ["large"])
    series = curves().of_run(shown, run, "system/utilization", STEP)
    [(_, first), (change, second)] = series.attempts
    assert (first, second) == (1, 2)
    assert abs(series.x[change] - 600) < 30
    found = list(series.values._values)
    assert set(map(round, found[:change])) == {45}
    assert set(map(round, found[change:])) == {85}


def test_run_on_two_hosts_adds_or_averages_them() -> None:
    base = fleets.run()
    assert base.status is not None
    group = replace(base.lineage, attempts=[dict(base.lineage.attempts[0], target="big")]) if base.lineage else None
    copies = [
        replace(base, host=name, lineage=group, status=replace(base.status, process=number, processes=2))
        for number, name in enumerate(("small", "large"))
    ]
    hosts = [fleets.host("small", kind="NVIDIA H100"), fleets.host("large", kind="NVIDIA H100")]
    system = {"small": fleets.system_series(600, busy=0.5), "large": fleets.system_series(600, busy=0.9)}
    shown = fleets.snapshot(hosts, copies, system=system)
    run = shown.copies("nano")[0]
    assert curves().of_run(shown, run, "system/utilization", TIME).last == pytest.approx(65.0)
    assert curves().of_run(shown, run, "system/power", TIME).last == pytest.approx(1400.0)


def test_only_the_accelerators_that_a_run_uses_count() -> None:
    machine = fleets.machine("small", 2, "NVIDIA H100", users=(AcceleratorUser(42, "ann", "python", run="nano"),))
    units = (machine.accelerators[0], replace(machine.accelerators[1], pids=(42,)))
    host = fleets.host("small", machine=replace(machine, accelerators=units))
    system = {"small": fleets.system_series(600)}
    shown = fleets.snapshot([host], [fleets.run()], system=system)
    drawn = curves()
    assert drawn.of_run(shown, shown.runs[0], "system/utilization", TIME).last == pytest.approx(80.0)
    assert drawn.of_run(shown, shown.runs[0], "system/cpu", TIME).last < 31
    ended = fleets.snapshot([fleets.host("small", kind="NVIDIA H100")], [fleets.run(running=False)], system=system)
    assert drawn.of_run(ended, ended.runs[0], "system/utilization", TIME).last == pytest.approx(80.0), "remembered"


def test_difference_of_clocks_is_removed() -> None:
    ahead = fleets.run(curve=[dict(row, time=row["time"] + 3600) for row in fleets.rows(1204)])
    shown = one_host(ahead, clock_skew=3600.0)
    series = curves().of_run(shown, shown.runs[0], "system/cpu", TIME)
    assert 0 <= series.x[0] < 10
    assert SECONDS - 10 < series.x[-1] <= SECONDS + 5


@pytest.mark.parametrize("times", [math.nan, None, -1e18, 1e18, 0.0], ids=repr)
def test_run_with_wrong_times_has_ascending_points_or_none(times: float | None) -> None:
    rows = fleets.rows(300)
    for row in rows[::3]:
        row["time"] = times
    shown = one_host(fleets.run(step=300, curve=rows))
    for axis in (STEP, TIME):
        series = curves().of_run(shown, shown.runs[0], "system/cpu", axis)
        assert list(series.x) == sorted(series.x)
        assert len(series.x) == len(series.values)


def test_curve_is_built_again_only_after_a_new_point() -> None:
    shown = one_host()
    drawn = curves()
    first = drawn.of_run(shown, shown.runs[0], "system/cpu", STEP)
    assert drawn.of_run(shown, shown.runs[0], "system/cpu", STEP) is first
    for second in range(12):
        shown.system["small"].add(NOW + second, {"cpu_used": 0.9})
    assert drawn.of_run(shown, shown.runs[0], "system/cpu", TIME).last == pytest.approx(90.0)


# -------------------------------------------------------------------------------------------------------- screens


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_host_screen_draws_each_accelerator_over_the_clock(size: tuple[int, int]) -> None:
    app = app_over(one_host())
    async with app.run_test(size=size) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen))
        await settle(pilot, lambda: "system/utilization" in screen_text(app))
        assert "── 0  ── 1" in screen_text(app)
        await pilot.press("h")
        await settle(pilot, lambda: "0 90%" in screen_text(app) and "1 80%" in screen_text(app))
        await pilot.press("right_square_bracket", "right_square_bracket")
        await settle(pilot, lambda: "0 300 W" in screen_text(app) and "1 400 W" in screen_text(app))
        await pilot.press("p")
        await settle(pilot, lambda: "90%, 80%" in screen_text(app) and "40.0 GB, 40.0 GB" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen))
        await pilot.press("escape")  # removes the crosshair
        await settle(pilot, lambda: "0 300 W" not in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: not isinstance(app.screen, HostScreen))


async def test_host_screen_leaves_the_axis_of_runs_alone() -> None:
    app = app_over(one_host())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen))
        await pilot.press("v", "s", "x")
        await settle(pilot)
        assert app.saved_layout.axis == STEP
        assert app.screen.query_one("#main-curve", CurveView).style_options.axis == "clock"


async def test_host_screen_without_values_says_so() -> None:
    app = app_over(fleets.snapshot([fleets.host("gpu1", "down"), fleets.host("small")], []))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: "gpu1: no report yet" in screen_text(app))
        await pilot.press("right_square_bracket", "p", "z", "t", "2")
        await settle(pilot, lambda: "ssh: no report yet" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot, lambda: not isinstance(app.screen, HostScreen))
        await pilot.press("j", "v")
        await settle(pilot, lambda: "small: no values yet" in screen_text(app))


async def test_selected_run_leads_to_its_host() -> None:
    app = app_over(one_host())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "v")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen))
        screen = app.screen
        assert isinstance(screen, HostScreen)
        assert screen.host == "small"
        await pilot.press("escape")
        await settle(pilot, lambda: not isinstance(app.screen, HostScreen))
        await pilot.press("3", "v")
        await settle(pilot)
        assert not isinstance(app.screen, HostScreen)


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_run_screen_offers_system_metrics_beside_its_own(size: tuple[int, int]) -> None:
    app = app_over(moved(), start_run="nano")
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        names = app.screen.metric_names()
        assert names.index("system/utilization") == 4, "after the well-known metrics"
        app.screen.promote("system/utilization")
        await settle(pilot, lambda: "system/utilization 85%" in screen_text(app))
        assert "large 4×cpu" in screen_text(app), "attempts have their names and colours"
        await pilot.press("x", "x")
        await settle(pilot, lambda: app.screen.query_one("#main-curve", CurveView).style_options.axis == TIME)
        assert "system/utilization 85%" in screen_text(app)
        await pilot.press("p")
        await settle(pilot, lambda: "system/power" in screen_text(app))


async def test_small_multiples_show_the_same_kind_first() -> None:
    app = app_over(one_host(), start_run="nano")
    async with app.run_test(size=(160, 45)) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        app.screen.promote("system/cpu")
        await settle(pilot, lambda: "system/cpu" in screen_text(app))
        shown = [tile.metric for tile in app.screen.query("#tiles CurveView").results(CurveView) if tile.display]
        assert all(name.startswith("system/") for name in shown)


async def test_new_points_appear_while_the_screen_is_open() -> None:
    shown = one_host()
    app = app_over(shown)
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v", "p", "G", "enter")
        await settle(pilot, lambda: "system/disk_written" in screen_text(app))
        assert "── small" in screen_text(app), "the host has one line"
        for second in range(12):
            shown.system["small"].add(NOW + second, {"disk_written": 123_000_000})
        app.source.set(replace(shown, version=2))
        await settle(pilot, lambda: "system/disk_written 123 MB/s" in screen_text(app))


async def test_metric_that_is_always_zero_has_a_plain_axis() -> None:
    app = app_over(one_host())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen))
        assert isinstance(app.screen, HostScreen)
        app.screen.promote("system/disk_read")
        await settle(pilot, lambda: "system/disk_read 0.00 MB/s" in screen_text(app))
        assert "e-" not in screen_text(app).split("system/disk_read")[1]


async def test_shares_are_drawn_from_0_to_100_percent() -> None:
    app = app_over(one_host())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: isinstance(app.screen, HostScreen) and "system/utilization" in screen_text(app))
        labels = [line.partition("┤")[0].strip() for line in screen_text(app).splitlines() if "┤" in line]
        assert (labels[0], labels[-1]) == ("100", "0")
        await pilot.press("W", *"80:90", "enter")
        await settle(pilot, lambda: "y 80:90" in screen_text(app))
        labels = [line.partition("┤")[0].strip() for line in screen_text(app).splitlines() if "┤" in line]
        assert (labels[0], labels[-1]) == ("90", "80")


async def test_host_screen_has_age_of_unreachable_hosts_report() -> None:
    before = one_host()
    app = app_over(before)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "v")
        await settle(pilot, lambda: "system/utilization" in screen_text(app))
        assert "last report" not in screen_text(app)
        unreachable = replace(before.hosts[0], link=STALE, last_seen=NOW - 3 * 3600)
        assert isinstance(app.source, PreparedSnapshots)
        app.source.set(replace(before, version=2, hosts=(unreachable,)))
        await settle(pilot, lambda: "small ! last report 3h ago" in screen_text(app).splitlines()[0])
        screen = app.screen
        assert isinstance(screen, HostScreen)
        assert screen.chart_name() == "small"
