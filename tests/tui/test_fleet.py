"""The fleet screen: what is known of hosts, runs and migrations, stale or not, and where one goes from there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.tui import palette
from midstream.tui.filter import parse
from midstream.tui.saved_layout import Layout
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration.migration_screen import MigrationScreen
from midstream.tui.screens.migration.wizard import WizardScreen
from midstream.tui.screens.run.run_screen import RunScreen
from midstream.tui.widgets.table import Rows, Table
from midstream.watch.snapshot import CONNECTING, DOWN
from tui import worlds
from tui.looking import app_over, screen_text, settle
from tui.worlds import Answers, Values


def line_with(text: str, *words: str) -> str:
    found = [line for line in text.splitlines() if all(word in line for word in words)]
    assert found, f"no line with {words}:\n{text}"
    return found[0]


async def test_it_begins_with_the_runs_and_their_numbers() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        line = line_with(screen_text(app), "nano")
        for word in ("large", "● training", "1,204/2,000", "2.0798", "12.3k", "4×cpu"):
            assert word in line


async def test_a_run_on_a_silent_host_is_shown_with_its_age_and_a_mark() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "3m !" in line_with(screen_text(app), "gpt2-medium")
        assert "!" not in line_with(screen_text(app), "baseline")


async def test_a_lost_run_and_a_failed_one_are_marked() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "✗ lost" in line_with(screen_text(app), "overnight")
        assert "✗ failed" in line_with(screen_text(app), "ablate")


async def test_hosts_show_their_links_and_what_is_wrong() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        text = screen_text(app)
        assert "connection refused: is sshd running on gpu1?" in line_with(text, "gpu1", "✗ down")
        assert "3m !" in line_with(text, "◐ stale", "8×A100", "93%")
        await pilot.press("j", "j")
        await settle(pilot)
        assert "61.0 GB of 80.0 GB" in screen_text(app)


async def test_the_selection_is_marked_and_outlives_an_update_that_moves_it() -> None:
    first, second = worlds.run("alpha"), worlds.run("beta")
    values = Values(worlds.small_fleet(first, second))
    app = app_over(worlds.small_fleet(first, second))
    app.source = values
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j")
        await settle(pilot)
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")
        values.set(worlds.small_fleet(worlds.run("aardvark"), first, second))
        await settle(pilot, lambda: "aardvark" in screen_text(app))
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")


async def test_changes_from_other_threads_arrive_at_most_four_times_a_second() -> None:
    app = app_over(worlds.small_fleet())
    assert isinstance(app.source, Values)
    values = app.source
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        published: list[int] = []
        publish = app.publish
        app.publish = lambda: (published.append(app.source.snapshot().version), publish())[1]
        for version in range(2, 202):
            values.set(replace(worlds.small_fleet(), version=version))
        await settle(pilot, lambda: app.world.snapshot.version == 201)
        assert len(published) <= 2, "two hundred changes at once are one repaint"


async def test_a_filter_keeps_lines_with_the_word_and_esc_clears_it() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"gpu2", "enter")
        await settle(pilot)
        text = screen_text(app)
        assert "gpt2-medium" in text
        assert "overnight" not in text
        await pilot.press("escape")
        await settle(pilot)
        assert "overnight" in screen_text(app)


FIELDS = {"run": "nano", "state": "training", "loss": 2.5, "step": 1204}


@pytest.mark.parametrize(
    ("filter", "kept"),
    [
        ("", True),
        ("nano", True),
        ("NANO train", True),
        ("!nano", False),
        ("!x nano", True),
        ("!", True),
        ("state:train", True),
        ("st:train", True),
        ("state:failed", False),
        ("!state:failed", True),
        ("run:train", False),
        ("run=nan", False),
        ("loss<3 step>1k", True),
        ("loss>3", False),
        ("loss<x", False),
        ("http://nano", False),
    ],
)
def test_filter_words(filter: str, kept: bool) -> None:
    assert all(word.holds(FIELDS, FIELDS.get) for word in parse(filter, FIELDS)) is kept


async def test_o_sorts_by_the_columns_and_a_click_on_a_heading_too() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)

        def names() -> list[str]:
            return [str(row.key) for row in app.screen.query_one("#runs", Table).rows]

        assert names()[0] == "gpt2-medium", "what runs comes first"
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


async def test_marked_runs_are_laid_over_the_one_that_is_opened() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "space", "j")
        await settle(pilot)
        assert "■  nano" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        title = screen_text(app).splitlines()[2]
        assert "── baseline" in title
        assert "── nano" in title


async def test_five_hundred_hosts_and_five_thousand_runs_are_walked_and_filtered() -> None:
    hosts = [worlds.host(f"host{number:03}") for number in range(500)]
    curve = worlds.rows(20)
    runs = [worlds.run(f"run{number:04}", f"host{number % 500:03}", step=20, curve=curve) for number in range(5000)]
    app = app_over(worlds.snapshot(hosts, runs))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        table = app.screen.query_one("#runs", Table)
        assert isinstance(table.rows, Rows)
        assert len(table.rows._made) < 200, "lines are made when they come in sight"
        await pilot.press("G")
        await settle(pilot, lambda: "run4999" in screen_text(app))
        await pilot.press("slash", *"host:host123", "enter")
        await settle(pilot, lambda: "10 of 5000" in screen_text(app))


async def test_what_a_host_was_busy_over_time_is_a_line_of_columns() -> None:
    gpu = worlds.host("gpu1", accelerators=1, kind="NVIDIA A100-SXM4-80GB")
    app = app_over(worlds.snapshot([gpu]))
    assert isinstance(app.source, Values)
    assert gpu.machine is not None
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("1")
        for version, busy in enumerate((0.0, 0.5, 1.0), 2):
            item = replace(gpu.machine.accelerators[0], utilization=busy)
            host = replace(gpu, machine=replace(gpu.machine, accelerators=(item,)))
            app.source.set(worlds.snapshot([host], version=version))
            await settle(pilot, lambda version=version: app.world.snapshot.version == version)
        assert "▁▅█ 100% of its accelerators" in screen_text(app)


async def test_news_are_told_wherever_one_is() -> None:
    app = app_over(worlds.small_fleet(worlds.run(), worlds.run("other")))
    assert isinstance(app.source, Values)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("enter")
        await settle(pilot)
        failed = worlds.run("other", state="failed", alive=False)
        quiet = worlds.host("large", "stale")
        app.source.set(worlds.snapshot([worlds.host("small"), quiet], [worlds.run(), failed]))
        await settle(pilot, lambda: "other failed on small" in screen_text(app))
        assert "large fell silent" in screen_text(app)


async def test_who_looks_at_a_move_is_not_told_of_it_besides() -> None:
    answers = Answers(worlds.migration())
    app = app_over(worlds.moved_fleet(), answers)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("3", "enter")
        await settle(pilot)
        answers.views = (worlds.certified(),)
        await settle(pilot, lambda: "✓ witness" in screen_text(app))
        assert "nano to large: certified" not in screen_text(app)
        await pilot.press("escape")
        answers.views = (replace(worlds.certified(), finished=True, state="completed"),)
        await settle(pilot, lambda: "nano to large: finished" in screen_text(app))


async def test_hosts_are_added_from_the_ssh_configuration() -> None:
    answers = Answers()
    app = app_over(worlds.snapshot(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await settle(pilot)
        assert "gpu1" in screen_text(app)
        await pilot.press("space", "j", "space", "enter")
        await pilot.pause()
    assert answers.asked == [("add", ("  gpu1: {type: ssh, address: gpu1}", "  login: {type: ssh, address: login}"))]
    assert app.return_code == 75, "the command begins anew with the fleet that was written"


async def test_another_theme_is_used_at_once_and_kept(tmp_path) -> None:
    kept = Layout.load(tmp_path / "screen.json")
    app = app_over(worlds.big_fleet())
    app.kept = kept
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("T", "j", "enter")
        await settle(pilot)
        assert app.theme == "paper"
        await pilot.press("1", "q")
    assert Layout.load(tmp_path / "screen.json").theme == "paper"
    assert Layout.load(tmp_path / "screen.json").view == "hosts"
    (tmp_path / "screen.json").write_text("not json")
    assert Layout.load(tmp_path / "screen.json").theme == "midstream"
    palette.use(palette.DEFAULT)


async def test_a_picture_is_a_file(tmp_path) -> None:
    app = app_over(worlds.big_fleet())
    app.kept = Layout.load(tmp_path / "screen.json")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("P")
        await settle(pilot)
    [picture] = tmp_path.glob("*.svg")
    assert "gpt2-medium" in picture.read_text()


async def test_keys_typed_into_the_filter_are_no_commands() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"qmS1")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "nothing matches 'qmS1'" in screen_text(app)


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (worlds.snapshot(), ("midstream --init", "midstream --demo")),
        (worlds.snapshot([worlds.host("small")]), ("midstream --launch CONFIG --on small",)),
        (worlds.snapshot([worlds.host("small", CONNECTING, machine=None, last_seen=None)]), ("asking small",)),
    ],
    ids=["no hosts", "no runs", "not connected yet"],
)
async def test_an_empty_list_says_what_to_do_next(snapshot, words: tuple[str, ...]) -> None:
    app = app_over(snapshot)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for word in words:
            assert word in screen_text(app)
        await pilot.press("enter", "m", "S", "3")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_enter_opens_the_run_and_esc_comes_back() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "enter")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "nano"
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_migrations_open_their_screen() -> None:
    app = app_over(worlds.moved_fleet(), Answers(worlds.certified()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("3")
        await settle(pilot)
        assert "certified" in line_with(screen_text(app), "nano", "small", "large")
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_m_opens_the_wizard_and_the_move_itself_where_one_is_under_way() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)
        await pilot.press("escape")
        answers.views = (worlds.migration(),)
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_stop_asks_for_the_runs_name() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press(*"nan", "enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert answers.asked == []
        await pilot.press("o", "enter")
        await settle(pilot)
        assert answers.asked == [("stop", ("small", "nano"))]


async def test_esc_leaves_the_run_running() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S", "escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert answers.asked == []


async def test_a_run_that_does_not_run_cannot_be_stopped() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(worlds.run(alive=False)), answers)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "does not run" in screen_text(app)


async def test_readonly_refuses_what_changes_something() -> None:
    answers = Answers(worlds.migration())
    app = app_over(worlds.small_fleet(), answers, readonly=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        assert "read-only" in screen_text(app)
        await pilot.press("m", "S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "--readonly" in screen_text(app)
        await pilot.press("3", "enter", "r", "c")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)
        assert answers.asked == []


async def test_q_quits_with_success_and_lets_go_of_the_source() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert isinstance(app.source, Values)
        assert app.source.subscribers == 1
        await pilot.press("q")
    assert app.return_code == 0
    assert app.source.subscribers == 0


async def test_help_lists_the_keys_of_the_screen() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("question_mark")
        await settle(pilot)
        text = screen_text(app)
        for words in (("m", "Migrate"), ("S", "Stop"), ("/", "Filter"), ("q", "Quit"), ("j Down", "Down")):
            line_with(text, *words)
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_the_palette_finds_a_command_by_its_name() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p")
        await settle(pilot)
        await pilot.press(*"migrate")
        await settle(pilot, lambda: "move the run to another target" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))


async def test_a_click_on_a_view_opens_it() -> None:
    app = app_over(worlds.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.click(offset=(4, 1))
        await settle(pilot)
        assert "connection refused" in screen_text(app)


async def test_the_whole_error_of_a_host_can_be_read_on_a_small_screen() -> None:
    error = (
        "gpu1: host key of [127.0.0.1]:53507 is not known (ssh-ed25519 "
        "SHA256:Zdeb9xDyjIB0Ds/ysoJfrze0ne/8lZnp6bDEZy17odQ) "
        "(compare the fingerprint, then: ssh-keyscan -p 53507 127.0.0.1 >> /home/me/.ssh/known_hosts)"
    )
    app = app_over(worlds.snapshot([worlds.host("gpu1", DOWN, error=error), worlds.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        shown = screen_text(app).split("─ gpu1 ")[1]
        assert error.removeprefix("gpu1: ") in " ".join(shown.split())


async def test_a_launch_is_shown_on_a_host_that_answers() -> None:
    silent = worlds.host("gpu1", CONNECTING, machine=None, last_seen=None)
    app = app_over(worlds.snapshot([silent, worlds.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "midstream --launch CONFIG --on here" in text
        assert "asking gpu1 ..." in text
