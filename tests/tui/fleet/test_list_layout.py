"""Lists of the fleet screen: filter, groups, columns, order, and their layout as it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from midstream.tui.app import MidstreamApp
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.widgets.table import Rows, Table
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, line_with, screen_text, settle


def shown_runs(app: MidstreamApp) -> list[str]:
    """Return the ids of the listed runs, without headings."""
    keys = [row.key for row in app.screen.query_one("#runs", Table).rows]
    return [key for key in keys if isinstance(key, str)]


@pytest.mark.long
async def test_fleet_filter_keeps_matching_rows_and_esc_clears() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"gpu2", "enter")
        await settle(pilot)
        text = screen_text(app)
        assert "gpt2-medium" in text
        assert "overnight" not in text
        await pilot.press("escape")
        await settle(pilot)
        assert "overnight" in screen_text(app)


async def test_fleet_filter_shows_its_error_and_leaves_the_list() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(100, 24)) as pilot:
        await pilot.press("slash", *"gpu2 loss<2.5")
        await settle(pilot)
        assert shown_runs(app) == ["gpt2-medium"]
        await pilot.press(*"x")
        await settle(pilot)
        text = screen_text(app)
        line = line_with(text, "gpu2 loss<2.5x")
        error = line_with(text, "2.5x is not a number (for example 2.5, 10k")
        assert error.index("↑") == line.index("2.5x"), "the mark is below what is wrong"
        assert shown_runs(app) == ["gpt2-medium"]
        await pilot.press("enter")
        await settle(pilot)
        assert "is not a number" in screen_text(app), "enter leaves a malformed filter open"
        await pilot.press("backspace", "enter")
        await settle(pilot)
        assert "is not a number" not in screen_text(app)
        await pilot.press("slash", *" zzz:1")
        await settle(pilot)
        assert "column 15: no such field zzz; fields are run, name," in screen_text(app)
        await pilot.press("escape")
        await settle(pilot)
        assert len(shown_runs(app)) == 5
        assert "no such field" not in screen_text(app)


async def test_fleet_each_list_has_its_own_filter() -> None:
    app = app_over(fleets.big_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("slash", *"state:training", "enter", "1")
        await settle(pilot)
        assert "state:training" not in screen_text(app)
        assert "gpu1" in screen_text(app)
        await pilot.press("j", "j", "enter")  # the runs of gpu2
        await settle(pilot)
        assert "host=gpu2" in screen_text(app)
        assert shown_runs(app) == ["gpt2-medium", "ablate-lr-3e-3"]


async def test_fleet_groups_runs_under_headings_that_are_not_selected() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("b")
        await settle(pilot)
        text = screen_text(app)
        assert "by project" in text
        order = [
            "shakespeare  2",
            "nano",
            "baseline",
            "webtext  2",
            "gpt2-medium",
            "ablate-lr-3e-3",
            "no project  1",
            "overnight",
        ]
        listing = text[: text.index("enter opens")]
        places = [listing.index(word) for word in order]
        assert places == sorted(places), listing
        table = app.screen.query_one("#runs", Table)
        for key in ("g", "k"):
            await pilot.press(key)
            assert table.selected == "nano", "the heading above the first run is skipped"
        seen = [table.selected]
        for _ in range(6):
            await pilot.press("j")
            if table.selected != seen[-1]:
                seen.append(table.selected)
        assert seen == ["nano", "baseline", "gpt2-medium", "ablate-lr-3e-3", "overnight"]
        await pilot.press("k", "k")
        assert table.selected == "gpt2-medium"
        await pilot.press("b")
        await settle(pilot)
        text = screen_text(app)
        assert line_with(text, "ablation, lr  1")
        assert line_with(text, "no tags  3")
        await pilot.press("b", "b", "b")
        await settle(pilot)
        assert "by state" not in screen_text(app)


async def test_fleet_hides_finished_runs_and_says_so() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f")
        await settle(pilot)
        assert "baseline" not in shown_runs(app)
        assert {"overnight", "ablate-lr-3e-3"} <= set(shown_runs(app)), "lost and failed runs stay"
        assert "4 of 5, finished hidden" in screen_text(app)
        await pilot.press("slash", *"baseline", "enter")
        await settle(pilot)
        assert "finished ones are hidden: f shows them" in screen_text(app)
        await pilot.press("f")
        await settle(pilot)
        assert shown_runs(app) == ["baseline"]


async def test_fleet_columns_are_chosen() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(160, 30)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        for word in ("START", "Nov ", "TAGS", "lr, ablation"):
            assert word in text
        assert "PROJECT" not in text
        await pilot.press("c", "j", "space", "G", "k", "k", "space", "enter")  # without HOST, with PROJECT
        await settle(pilot)
        heading = line_with(screen_text(app), "RUN", "STATE")
        assert "HOST" not in heading
        assert "PROJECT" in heading
        assert "webtext" in line_with(screen_text(app), "gpt2-medium", "training")


async def test_fleet_views_are_remembered_for_their_fleet(tmp_path: Path) -> None:
    file = tmp_path / "screen.json"
    first = app_over(fleets.big_fleet())
    first.saved_layout = SavedLayout.load(file, "a.yaml")
    async with first.run_test(size=(160, 30)) as pilot:
        await pilot.press("slash", *"step>100", "enter", "o", "O", "b", "f", "q")
    other = SavedLayout.load(file, "b.yaml").list_of("runs")
    assert (other.filter, other.group) == ("", ""), "a filter names hosts and runs of one fleet"
    again = app_over(fleets.big_fleet())
    again.saved_layout = SavedLayout.load(file, "a.yaml")
    async with again.run_test(size=(160, 30)) as pilot:
        await settle(pilot)
        text = screen_text(again)
        for word in ("step>100", "RUN↓", "by project", "finished hidden"):
            assert word in text
        assert shown_runs(again) == ["nano", "gpt2-medium", "overnight"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "screen.json is ignored: it is not JSON"),
        ("[" * 100_000, "screen.json is ignored: it is not JSON"),
        ("[]", "screen.json is damaged, defaults are used for: it is no object"),
        ('{"theme": 5, "view": "hosts"}', "defaults are used for: theme"),
        ('{"fleets": [1]}', "defaults are used for: fleets"),
        ('{"fleets": {"": {"runs": {"sort": 1, "group": "host"}}}}', "defaults are used for: runs: sort"),
        ('{"fleets": {"": {"runs": {"columns": [1]}}}}', "defaults are used for: runs: columns"),
    ],
)
def test_damaged_layout_has_defaults_and_a_problem(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "screen.json"
    file.write_text(text)
    layout = SavedLayout.load(file)
    assert layout.problem.endswith(words)
    assert layout.theme == SavedLayout().theme
    assert layout.list_of("runs").sort == ""


def test_failed_save_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "screen.json"
    file.mkdir()  # cannot be replaced by a file
    SavedLayout(file=file).save()
    assert list(tmp_path.iterdir()) == [file]


async def test_damaged_layout_is_ignored_with_a_notice(tmp_path: Path) -> None:
    file = tmp_path / "screen.json"
    file.write_text('{"view": 5, "fleets": {"": {"runs": {"filter": "zzz:1"}}}}')
    app = app_over(fleets.big_fleet())
    app.saved_layout = SavedLayout.load(file)
    async with app.run_test(size=(160, 30), notifications=True) as pilot:
        await settle(pilot, lambda: "saved layout" in screen_text(app) and "saved filter dropped" in screen_text(app))
        assert len(shown_runs(app)) == 5


async def test_fleet_sorts_by_key_and_by_click_on_heading() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)

        def names() -> list[str]:
            return [str(row.key) for row in app.screen.query_one("#runs", Table).rows]

        assert names()[0] == "gpt2-medium", "running runs come first"
        await pilot.press("o")
        await settle(pilot)
        assert names() == sorted(names())
        assert "RUN↑" in screen_text(app)
        await pilot.press("O")
        await settle(pilot)
        assert names() == sorted(names(), reverse=True)
        heading = next(line for line in screen_text(app).splitlines() if "STEP" in line)
        for arrow in ("↑", "↓"):
            await pilot.click("#runs", offset=(heading.index("STEP"), 0))
            await settle(pilot)
            assert f"STEP{arrow}" in screen_text(app)
        assert names()[-1] == "ablate-lr-3e-3"


@pytest.mark.long
async def test_fleet_of_5000_runs_is_navigated_and_filtered() -> None:
    hosts = [fleets.host(f"host{number:03}") for number in range(500)]
    curve = fleets.rows(20)
    runs = [fleets.run(f"run{number:04}", f"host{number % 500:03}", step=20, curve=curve) for number in range(5000)]
    app = app_over(fleets.snapshot(hosts, runs))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        table = app.screen.query_one("#runs", Table)
        assert isinstance(table.rows, Rows)
        assert len(table.rows._created) < 200, "rows are created when they become visible"
        await pilot.press("G")
        await settle(pilot, lambda: "run4999" in screen_text(app))
        await pilot.press("slash", *"host:host123", "enter")
        await settle(pilot, lambda: "10 of 5000" in screen_text(app))


async def test_fleet_filter_keys_are_not_commands() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"qmS1")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "no match for 'qmS1'" in screen_text(app)
