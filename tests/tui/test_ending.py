"""How the terminal UI ends: by a key, by a signal, with its terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.migrate import model
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.quit import FINISH, ROLL_BACK, QuitScreen
from tui import worlds
from tui.looking import screen_text, settle
from tui.terminal import TMUX, Terminal
from tui.worlds import NOW, Answers, Values

# ------------------------------------------------------------------------------------------ the demo asks first


def demo_over(view: model.MigrationView, *, readonly: bool = False, demo: bool = True) -> MidstreamApp:
    values = Values(worlds.small_fleet())
    return MidstreamApp(values, Answers(view), readonly=readonly, demo=demo, clock=lambda: NOW)


@pytest.mark.parametrize(("key", "answer"), [("f", FINISH), ("r", ROLL_BACK)])
async def test_a_demo_asks_what_becomes_of_a_move_under_way(key: str, answer: str) -> None:
    app = demo_over(worlds.migration())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("q")
        await settle(pilot, lambda: isinstance(app.screen, QuitScreen))
        text = screen_text(app)
        for words in ("nano is being moved from small to large", "let it finish", "roll it back", "esc  stay"):
            assert words in text
        await pilot.press("escape")
        await settle(pilot, lambda: not isinstance(app.screen, QuitScreen))
        assert app.return_value is None
        await pilot.press("q", key)
        await settle(pilot)
    assert (app.return_code, app.moves) == (0, answer)


async def test_a_demo_names_the_steps_that_a_rollback_gives_up() -> None:
    app = MidstreamApp(Values(worlds.moved_fleet()), Answers(worlds.certified()), demo=True, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("q")
        await settle(pilot, lambda: isinstance(app.screen, QuitScreen))
        assert "36 steps on large are given up" in screen_text(app)


async def test_a_read_only_demo_offers_no_rollback() -> None:
    app = demo_over(worlds.migration(), readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("q", "r")
        await settle(pilot)
        assert isinstance(app.screen, QuitScreen)
        assert "roll it back" not in screen_text(app)


@pytest.mark.parametrize("state", [model.INTERRUPTED, model.COMPLETED, model.ROLLED_BACK])
async def test_a_demo_without_a_running_move_ends_at_once(state: str) -> None:
    app = demo_over(worlds.migration(state))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("q")
        await settle(pilot)
    assert app.return_code == 0


async def test_outside_the_demo_a_move_goes_on_without_a_question() -> None:
    app = demo_over(worlds.migration(), demo=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("q")
        await settle(pilot)
    assert app.return_code == 0


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (model.RUNNING, "1 moving"),
        (model.INTERRUPTED, "1 interrupted"),
        (model.ROLLBACK_INCOMPLETE, "1 interrupted"),
        (model.DAMAGED, "1 interrupted"),
        (model.COMPLETED, ""),
    ],
)
async def test_only_moves_that_run_count_as_moving(state: str, words: str) -> None:
    app = demo_over(worlds.migration(state))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        top = screen_text(app).splitlines()[0]
        assert words in top
        assert ("moving" in top) == (state == model.RUNNING)


async def test_damaged_files_are_named_in_the_list_and_on_the_migrations_screen() -> None:
    damage = ("plan.json is empty", "fleet.yaml is missing")
    app = demo_over(worlds.migration(model.INTERRUPTED, damage=damage), demo=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.world.migrations))
        await pilot.press("3")
        await settle(pilot)
        for line in damage:
            assert f"✗ {line}" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert "✗ plan.json is empty; fleet.yaml is missing (c restores" in screen_text(app)


# ------------------------------------------------------------------------------------------ in a real terminal


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("tmux"))
    yield made
    made.close()


def started(terminal: Terminal, tmp_path: Path) -> int:
    """The pid of the terminal UI over a fleet of this machine."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts:\n  here: {{type: local, root: "{tmp_path}/root"}}\n')
    words = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
    terminal.start(words, {"MIDSTREAM_STATE": str(tmp_path / "state"), "TERM": "screen-256color"})
    terminal.wait(lambda screen: "1 live" in screen, "the host")
    return terminal.pid


def wait_ended(pid: int, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{pid} still runs"
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_closes_the_screen(number: signal.Signals, terminal: Terminal, tmp_path: Path) -> None:
    os.kill(started(terminal, tmp_path), number)
    code, _ = terminal.wait_end(60)
    assert code == 128 + number
    assert "Hosts" not in terminal.screen, "the terminal is as it was"
    assert "Traceback" not in terminal.screen


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
def test_it_ends_with_its_terminal(terminal: Terminal, tmp_path: Path) -> None:
    pid = started(terminal, tmp_path)
    terminal.close()
    wait_ended(pid)


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
def test_it_ends_with_its_terminal_where_no_signal_comes(tmp_path: Path) -> None:
    """A pseudo-terminal that is not the process's controlling one: only reading it shows that it is gone."""
    import pty
    import subprocess

    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts:\n  here: {{type: local, root: "{tmp_path}/root"}}\n')
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "midstream", "--fleet", str(fleet)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "MIDSTREAM_STATE": str(tmp_path / "state"), "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"Runs" not in seen:
        seen += os.read(ours, 4096)
    os.close(ours)
    assert child.wait(60) == 128 + signal.SIGHUP
