"""The fleet screen: what is known of hosts, runs and migrations, stale or not, and where one goes from there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.tui.screens.confirm import ConfirmScreen
from midstream.tui.screens.fleet import FleetScreen, matches
from midstream.tui.screens.migration import MigrationScreen
from midstream.tui.screens.run import RunScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.widgets.table import Row
from midstream.watch.model import CONNECTING, DOWN
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


@pytest.mark.parametrize(
    ("filter", "kept"),
    [("", True), ("nano", True), ("NANO live", True), ("!nano", False), ("!x nano", True), ("!", True)],
)
def test_filter_words(filter: str, kept: bool) -> None:
    assert matches(Row("k", ("nano", ("● live", "#fff"))), filter) is kept


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
