"""The fleet screen: hosts, runs, migrations, their age, and the way to other screens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration.migration_screen import MigrationScreen
from midstream.tui.screens.migration.wizard import WizardScreen
from midstream.tui.screens.run.run_screen import RunScreen
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.style import palette
from midstream.tui.widgets.table import Rows, Table
from midstream.watch.snapshot import CONNECTING, DOWN, Snapshot
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, screen_text, settle


def line_with(text: str, *words: str) -> str:
    found = [line for line in text.splitlines() if all(word in line for word in words)]
    assert found, f"no line with {words}:\n{text}"
    return found[0]


def shown_runs(app: MidstreamApp) -> list[str]:
    """Return the ids of the listed runs, without headings."""
    keys = [row.key for row in app.screen.query_one("#runs", Table).rows]
    return [key for key in keys if isinstance(key, str)]


async def test_fleet_opens_on_runs_with_their_numbers() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        line = line_with(screen_text(app), "nano")
        for word in ("large", "● training", "1,204/2,000", "2.0798", "12.3k", "4×cpu"):
            assert word in line


async def test_fleet_marks_runs_on_unreachable_host_with_age() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "3m !" in line_with(screen_text(app), "gpt2-medium")
        assert "!" not in line_with(screen_text(app), "baseline")


async def test_log_of_the_selected_run_opens_from_the_list() -> None:
    app = app_over(fleets.small_fleet(fleets.run(log=("step 1", "step 2"))))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert "step 2" in screen_text(app)
        await pilot.press("escape", "1", "l")
        await settle(pilot, lambda: "press 2 and select the run" in screen_text(app))


async def test_fleet_marks_lost_and_failed_runs() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "✗ lost" in line_with(screen_text(app), "overnight")
        assert "✗ failed" in line_with(screen_text(app), "ablate")


async def test_fleet_hosts_show_links_and_errors() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        text = screen_text(app)
        assert "connection refused: is sshd running on gpu1?" in line_with(text, "gpu1", "✗ down")
        assert "3m !" in line_with(text, "◐ stale", "8×A100", "93%")
        await pilot.press("j", "j")
        await settle(pilot)
        assert "61.0 GB of 80.0 GB" in screen_text(app)


async def test_fleet_selection_survives_updates_that_move_it() -> None:
    first, second = fleets.run("alpha"), fleets.run("beta")
    snapshots = PreparedSnapshots(fleets.small_fleet(first, second))
    app = app_over(fleets.small_fleet(first, second))
    app.source = snapshots
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j")
        await settle(pilot)
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")
        snapshots.set(fleets.small_fleet(fleets.run("aardvark"), first, second))
        await settle(pilot, lambda: "aardvark" in screen_text(app))
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")


async def test_fleet_updates_at_most_four_times_a_second() -> None:
    app = app_over(fleets.small_fleet())
    assert isinstance(app.source, PreparedSnapshots)
    snapshots = app.source
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        published: list[int] = []
        publish = app.publish
        app.publish = lambda: (published.append(app.source.snapshot().version), publish())[1]
        for version in range(2, 202):
            snapshots.set(replace(fleets.small_fleet(), version=version))
        await settle(pilot, lambda: app.screen_state.snapshot.version == 201)
        assert len(published) <= 2, "200 changes in a row are one repaint"


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
        assert "column 15: no such field zzz; fields are run, host," in screen_text(app)
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
        await pilot.press("c", "space", "G", "k", "space", "enter")  # without HOST, with PROJECT
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


async def test_fleet_overlays_marked_runs_on_the_opened_one() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "space", "j")
        await settle(pilot)
        assert "■  nano" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        title = screen_text(app).splitlines()[2]
        assert "── baseline" in title
        assert "── nano" in title


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


async def test_fleet_host_activity_is_a_sparkline() -> None:
    gpu = fleets.host("gpu1", accelerators=1, kind="NVIDIA A100-SXM4-80GB")
    app = app_over(fleets.snapshot([gpu]))
    assert isinstance(app.source, PreparedSnapshots)
    assert gpu.machine is not None
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("1")
        for version, busy in enumerate((0.0, 0.5, 1.0), 2):
            item = replace(gpu.machine.accelerators[0], utilization=busy)
            host = replace(gpu, machine=replace(gpu.machine, accelerators=(item,)))
            app.source.set(fleets.snapshot([host], version=version))
            await settle(pilot, lambda version=version: app.screen_state.snapshot.version == version)
        assert "▁▅█ 100% of the accelerators" in screen_text(app)


async def test_notifications_appear_on_any_screen() -> None:
    app = app_over(fleets.small_fleet(fleets.run(), fleets.run("other")))
    assert isinstance(app.source, PreparedSnapshots)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("enter")
        await settle(pilot)
        failed = fleets.run("other", state="failed", running=False)
        unreachable = fleets.host("large", "stale")
        app.source.set(fleets.snapshot([fleets.host("small"), unreachable], [fleets.run(), failed]))
        await settle(pilot, lambda: "other failed on small" in screen_text(app))
        assert "large is unreachable" in screen_text(app)


async def test_migration_screen_suppresses_its_own_toasts() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter")
        await settle(pilot)
        actions.views = (prepared_migrations.certified(),)
        await settle(pilot, lambda: "✓ reference losses" in screen_text(app))
        assert "nano to large: certified" not in screen_text(app)
        await pilot.press("escape")
        actions.views = (replace(prepared_migrations.certified(), finished=True, state="completed"),)
        await settle(pilot, lambda: "nano to large: finished" in screen_text(app))


async def test_fleet_adds_hosts_from_ssh_configuration() -> None:
    actions = PreparedActions()
    app = app_over(fleets.snapshot(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await settle(pilot)
        assert "gpu1" in screen_text(app)
        await pilot.press("space", "j", "space", "enter")
        await pilot.pause()
    assert actions.calls == [("add", ("  gpu1: {type: ssh, address: gpu1}", "  login: {type: ssh, address: login}"))]
    assert app.return_code == 75, "the command restarts with the changed fleet file"


async def test_theme_change_applies_and_is_saved(tmp_path: Path) -> None:
    layout = SavedLayout.load(tmp_path / "screen.json")
    app = app_over(fleets.big_fleet())
    app.saved_layout = layout
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("T", "j", "enter")
        await settle(pilot)
        assert app.theme == "paper"
        await pilot.press("1", "q")
    assert SavedLayout.load(tmp_path / "screen.json").theme == "paper"
    assert SavedLayout.load(tmp_path / "screen.json").view == "hosts"
    (tmp_path / "screen.json").write_text("not json")
    assert SavedLayout.load(tmp_path / "screen.json").theme == "midstream"
    palette.use(palette.DEFAULT)


async def test_screenshot_is_written_to_a_file(tmp_path: Path) -> None:
    app = app_over(fleets.big_fleet())
    app.saved_layout = SavedLayout.load(tmp_path / "screen.json")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
    [picture] = tmp_path.glob("*.svg")
    assert "gpt2-medium" in picture.read_text()


async def test_fleet_filter_keys_are_not_commands() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"qmS1")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "no match for 'qmS1'" in screen_text(app)


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (fleets.snapshot(), ("midstream --init", "midstream --demo")),
        (fleets.snapshot([fleets.host("small")]), ("midstream --launch CONFIG --on small",)),
        (fleets.snapshot([fleets.host("small", CONNECTING, machine=None, last_seen=None)]), ("connecting to small",)),
    ],
    ids=["no hosts", "no runs", "not connected yet"],
)
async def test_fleet_empty_list_shows_next_action(snapshot: Snapshot, words: tuple[str, ...]) -> None:
    app = app_over(snapshot)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for word in words:
            assert word in screen_text(app)
        await pilot.press("enter", "m", "S", "3")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_fleet_enter_opens_run_and_esc_returns() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "enter")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "nano"
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_fleet_migrations_open_their_screen() -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3")
        await settle(pilot)
        assert "certified" in line_with(screen_text(app), "nano", "small", "large")
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_fleet_m_opens_wizard_or_running_migration() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)
        await pilot.press("escape")
        actions.views = (prepared_migrations.migration(),)
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_stop_run_requires_the_run_name() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press(*"nan", "enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert actions.calls == []
        await pilot.press("o", "enter")
        await settle(pilot)
        assert actions.calls == [("stop", ("small", "nano"))]


async def test_stop_run_esc_leaves_run_running() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S", "escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert actions.calls == []


async def test_stop_run_refuses_a_run_that_has_exited() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(fleets.run(running=False)), actions)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "is not running" in screen_text(app)


async def test_read_only_refuses_changes() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(), actions, readonly=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        assert "read-only" in screen_text(app)
        await pilot.press("m", "S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "--readonly" in screen_text(app)
        await pilot.press("3", "enter", "r", "c")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)
        assert actions.calls == []


async def test_fleet_q_exits_zero_and_unsubscribes() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert isinstance(app.source, PreparedSnapshots)
        assert app.source.subscribers == 1
        await pilot.press("q")
    assert app.return_code == 0
    assert app.source.subscribers == 0


async def test_help_lists_keys_of_the_screen() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("question_mark")
        await settle(pilot)
        text = screen_text(app)
        for words in (("m", "Migrate"), ("S", "Stop"), ("/", "Filter"), ("q", "Quit"), ("j Down", "Down")):
            line_with(text, *words)
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_palette_finds_command_by_name() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await settle(pilot)
        await pilot.press(*"migrate")
        await settle(pilot, lambda: "migrate the run to another target" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))


async def test_fleet_click_on_a_view_opens_it() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.click(offset=(4, 1))
        await settle(pilot)
        assert "connection refused" in screen_text(app)


async def test_fleet_full_host_error_is_readable_at_small_size() -> None:
    error = (
        "gpu1: host key of [127.0.0.1]:53507 is not known (ssh-ed25519 "
        "SHA256:Zdeb9xDyjIB0Ds/ysoJfrze0ne/8lZnp6bDEZy17odQ) "
        "(compare the fingerprint, then: ssh-keyscan -p 53507 127.0.0.1 >> /home/me/.ssh/known_hosts)"
    )
    app = app_over(fleets.snapshot([fleets.host("gpu1", DOWN, error=error), fleets.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        shown = screen_text(app).split("─ gpu1 ")[1]
        assert error.removeprefix("gpu1: ") in " ".join(shown.split())


async def test_fleet_launch_hint_names_reachable_host() -> None:
    connecting = fleets.host("gpu1", CONNECTING, machine=None, last_seen=None)
    app = app_over(fleets.snapshot([connecting, fleets.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "midstream --launch CONFIG --on here" in text
        assert "connecting to gpu1 ..." in text
