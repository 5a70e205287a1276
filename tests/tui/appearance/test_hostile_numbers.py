"""The terminal UI over hosts that report the largest numbers: it draws every view."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from midstream import format
from midstream.charts.points import AXES, blocks
from midstream.tui.style.glyphs import UNICODE
from midstream.tui.widgets.bars import spark
from midstream.watch.machine import Accelerator
from midstream.watch.metric_rows import parse_rows
from midstream.watch.snapshot import Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from support.tui import fleets
from support.tui.screens import app_over, screen_text, settle

LARGEST = 1.7e308


def hostile_rows(**last: Any) -> list[dict[str, Any]]:
    found = fleets.rows(40)
    found[0]["time"] = -LARGEST
    return [*found[:-1], {**found[-1], **last}]


def hostile_fleet(rows: list[dict[str, Any]]) -> Snapshot:
    units = tuple(
        Accelerator(index, "H100", 2**63 - 1, 2**63 - 1, LARGEST, (), LARGEST, -LARGEST, LARGEST) for index in range(3)
    )
    machine = replace(
        fleets.machine("small"), cpu_used=-LARGEST, memory_used=2**63 - 1, disk_free=2**63 - 1, accelerators=units
    )
    run = fleets.run(step=39, curve=rows)
    assert run.status is not None
    status = replace(run.status, heartbeat=-LARGEST, num_train_steps=2**63 - 1, step=2**63 - 1)
    run = replace(run, status=status, checkpoints=(fleets.checkpoint(39, created=-LARGEST, size=2**63 - 1),))
    return fleets.snapshot([replace(fleets.host("small"), machine=machine), fleets.host("large")], [run])


@pytest.mark.long
@pytest.mark.parametrize("size", [(80, 24), (160, 45)], ids=str)
async def test_largest_numbers_of_a_host_are_drawn(size: tuple[int, int]) -> None:
    rows = hostile_rows(time=LARGEST, **{"throughput/duration": LARGEST, "train/loss": LARGEST})
    app = app_over(hostile_fleet(rows))
    async with app.run_test(size=size) as pilot:
        await pilot.press("1")
        await settle(pilot, lambda: " util inf%" in screen_text(app))
        await pilot.press("2", "enter")
        for axis in AXES:
            await pilot.press("x")
            await settle(pilot)
            assert "train/loss" in screen_text(app), axis
        for key in "234":
            await pilot.press(key)
            await settle(pilot)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, LARGEST, -LARGEST, -0.5, 1.5])
def test_sparkline_draws_any_value(value: float) -> None:
    assert len(spark(UNICODE, [0.5, value], 10)) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_duration_that_is_not_finite_is_unknown(value: float) -> None:
    assert format.seconds(value) == "-"


def test_positions_on_the_axis_of_time_are_finite() -> None:
    rows = hostile_rows(time=LARGEST)
    for _, x, _ in blocks(rows, 0, len(rows), "train/loss", "time"):
        assert all(map(math.isfinite, x))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "null", '"9"'])
def test_throughput_that_is_not_finite_is_left_out(value: str) -> None:
    (row,) = parse_rows(f'{{"global_step": 1, "throughput/duration": {value}, "train/loss": 2.5}}\n')
    assert row == {"global_step": 1, "train/loss": 2.5}


def test_snapshot_has_a_limited_number_of_accelerators() -> None:
    store = SnapshotStore({"small": "ssh"})
    units = [{"index": index, "kind": "H100"} for index in range(40_000)]
    beat = {"cpu_used": 0.1, "memory_total": 1, "memory_used": 1, "disk_total": 1, "disk_free": 1}
    store.take("small", {"event": "beat", "time": fleets.NOW, "accelerators": units, **beat})
    machine = store.snapshot().hosts[0].machine
    assert machine is not None
    assert len(machine.accelerators) == 256
