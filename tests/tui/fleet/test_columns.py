"""Columns of the lists: time, money, pictures, values of configurations, and names that are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from midstream.listing import fleet_fields
from midstream.listing.filter_parser import parse
from midstream.listing.fleet_facts import FleetFacts
from midstream.listing.fleet_moment import FleetMoment
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.widgets.table import Table, shortened
from midstream.watch.machine import AcceleratorUser
from midstream.watch.snapshot import RunView
from support.tui import fleets
from support.tui.fleets import NOW
from support.tui.prepared_actions import COSTS, PreparedActions
from support.tui.screens import app_over, line_with, screen_text, settle

RATES = {"alpha": "3.0e-4", "beta": "1.0e-3", "gamma": None}


class Configs(PreparedActions):
    """Prepared actions with a configuration for each run; that of ``gamma`` cannot be read."""

    def config(self, run: RunView, attempt: int) -> str:
        super().config(run, attempt)
        rate = RATES[run.run_id]
        return f"optimizer: {{learning_rate: {rate}, type: adam}}\n" if rate else ": not YAML"


def three_runs() -> list[RunView]:
    return [fleets.run(name) for name in RATES]


def saved(file: Path, *columns: str) -> SavedLayout:
    layout = SavedLayout(file=file)
    layout.list_of("runs").columns = list(columns)
    return layout


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("progress", 0.602),
        ("left", 0.21 * 796),
        ("elapsed", 7200.0),
        ("cost", 427.5),
        ("util", 0.75),
        ("config.optimizer.learning_rate", 3e-4),
        ("config.optimizer.type", "adam"),
    ],
)
def test_field_has_its_value(name: str, value: object) -> None:
    run = fleets.labelled(fleets.run("alpha"), 2.0)
    host = fleets.host("small", kind="A100")
    assert host.machine is not None
    items = [replace(each, utilization=share, pids=(pid,)) for each, share, pid in zip(
        host.machine.accelerators, (0.75, 0.1), (7, 8), strict=True
    )]  # fmt: skip
    users = (AcceleratorUser(7, "me", "python", run="alpha"), AcceleratorUser(8, "other", "python"))
    host = replace(host, machine=replace(host.machine, accelerators=tuple(items), users=users))
    facts = FleetFacts()
    facts.set_costs({"alpha": 427.5})
    moment = FleetMoment(fleets.snapshot([host], [run]), (), NOW, facts)
    field = fleet_fields.RUNS.named(name)
    assert field is not None
    field.get(run, moment)
    facts.read(lambda run: Configs().config(run, run.attempt))
    found = field.get(run, moment)
    assert found == pytest.approx(value) if isinstance(value, float) else found == value


def test_unknown_values_are_none() -> None:
    run = replace(fleets.run("gamma", curve=()), status=None, lineage=None, running=False)
    moment = FleetMoment(fleets.small_fleet(run), (), NOW)
    for name in ("progress", "left", "elapsed", "cost", "util", "trend", "config.x"):
        field = fleet_fields.RUNS.named(name)
        assert field is not None
        assert field.get(run, moment) is None, name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("config.optimizer.learning_rate>5e-4", ["beta"]),
        ("config.optimizer.learning_rate=3e-4", ["alpha"]),
        ("config.optimizer.type:ada", ["alpha", "beta"]),
        ("config.optimizer.type=sgd", []),
        ("config.optimizer.type>1", []),
        ('config.optimizer.type=""', ["gamma"]),
        ("!config.optimizer.learning_rate<1", ["gamma"]),
        ("config.optimizer.type~^ad", ["alpha", "beta"]),
    ],
)
def test_values_of_configurations_are_filtered_by(text: str, found: list[str]) -> None:
    runs, facts = three_runs(), FleetFacts()
    moment = FleetMoment(fleets.small_fleet(*runs), (), NOW, facts)
    condition = parse(text, fleet_fields.RUNS, NOW)
    passed = list[str]()
    for _ in range(2):  # the first one notes what is to be read
        passed = [run.run_id for run in runs if condition.holds(run, moment)]
        facts.read(lambda run: Configs().config(run, run.attempt))
    assert passed == found


@pytest.mark.long
async def test_config_value_is_chosen_sorted_and_remembered(tmp_path: Path) -> None:
    file, actions = tmp_path / "screen.json", Configs()
    app = app_over(fleets.small_fleet(*three_runs()), actions)
    app.saved_layout = SavedLayout(file=file)
    async with app.run_test(size=(160, 45)) as pilot:
        await settle(pilot)
        await pilot.press("c", "G", "space", "enter")
        await settle(pilot, lambda: "optimizer.learning_rate" in screen_text(app))
        await pilot.press("space", "enter")
        await settle(pilot, lambda: "0.001" in screen_text(app))
        assert "0.0003" in line_with(screen_text(app), "alpha")
        assert "LEARNING_RATE" in line_with(screen_text(app), "RUN  ")
        app.saved_layout.list_of("runs").sort = "config.optimizer.learning_rate"
        await pilot.press("O")
        await settle(pilot, lambda: list(app.screen.query_one("#runs", Table).keys) == ["beta", "alpha", "gamma"])
    again = SavedLayout.load(file).list_of("runs")
    assert "config.optimizer.learning_rate" in again.columns
    assert (again.sort, again.descending) == ("config.optimizer.learning_rate", True)


async def test_costs_are_read_while_they_are_shown(tmp_path: Path) -> None:
    actions = PreparedActions()
    actions.cost_report = COSTS
    layout = saved(tmp_path / "screen.json", "RUN", "COST", "ELAPSED")
    app = app_over(fleets.small_fleet(fleets.run("nano")), actions)
    app.saved_layout = layout
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: "427.50" in line_with(screen_text(app), "nano"))


async def test_curve_and_progress_are_drawn_where_there_is_room(tmp_path: Path) -> None:
    layout = saved(tmp_path / "screen.json", "RUN", "PROGRESS", "CURVE", "LEFT")
    app = app_over(fleets.small_fleet(fleets.run("nano")))
    app.saved_layout = layout
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        line = line_with(screen_text(app), "nano", "60%")
        assert "█████░░░" in line
        assert "2m47" in line
        assert "█▆" in line or "██" in line.split("60%")[1], line


async def test_names_are_cut_in_the_middle_and_only_without_room() -> None:
    name = "llama-7b-ablation-of-the-learning-rate-schedule-with-warmup-3e-4"
    app = app_over(fleets.small_fleet(fleets.run(name), fleets.run(name[:-1] + "5")))
    async with app.run_test(size=(160, 45)) as pilot:
        await settle(pilot)
        assert name in screen_text(app), "there is room"
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        text = screen_text(app)
        assert not any(name in line and "training" in line for line in text.splitlines())
        assert line_with(text, "llama-7b", "…", "3e-4 ")
        assert line_with(text, "llama-7b", "…", "3e-5 ")


@pytest.mark.parametrize(
    ("text", "room", "middle", "shown"),
    [
        ("abcdefgh", 5, True, "ab…gh"),
        ("abcdefgh", 5, False, "abcd…"),
        ("abcdefgh", 1, True, "…"),
        ("日本語日本", 6, True, "日 …本"),
    ],
)
def test_text_is_cut_to_its_room(text: str, room: int, middle: bool, shown: str) -> None:
    assert shortened(text, room, "…", in_middle=middle) == shown


async def test_each_accelerator_has_a_sparkline_and_its_memory() -> None:
    host = fleets.host("small", kind="NVIDIA A100-SXM4-80GB")
    assert host.machine is not None
    items = tuple(
        replace(each, utilization=0.93, memory_total=80 * 10**9, memory_used=61 * 10**9)
        for each in host.machine.accelerators
    )
    host = replace(host, machine=replace(host.machine, accelerators=items))
    snapshot = replace(
        fleets.snapshot([host], [fleets.run()]), system={"small": fleets.system_series(600, accelerators=2)}
    )
    app = app_over(snapshot)
    async with app.run_test(size=(100, 40)) as pilot:
        await settle(pilot)
        await pilot.press("1")
        await settle(pilot, lambda: "1 A100" in screen_text(app))
        for name in ("0 A100", "1 A100"):
            line = line_with(screen_text(app), name, "93%", "61.0 GB of 80.0 GB")
            assert sum(sign in "▁▂▃▄▅▆▇█" for sign in line.split("util")[0]) > 10, line
