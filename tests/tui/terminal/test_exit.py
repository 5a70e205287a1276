"""Exit of the terminal UI: by a key, by a signal, with its terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.quit import FINISH, ROLL_BACK, QuitScreen
from support.tui import fleets, prepared_migrations
from support.tui.fleets import NOW
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import screen_text, settle
from support.tui.terminal import TMUX, Terminal

# ------------------------------------------------------------------------------------------ question of the demo


def demo_over(view: MigrationView, *, readonly: bool = False, demo: bool = True) -> MidstreamApp:
    snapshots = PreparedSnapshots(fleets.small_fleet())
    return MidstreamApp(snapshots, PreparedActions(view), readonly=readonly, demo=demo, clock=lambda: NOW)


@pytest.mark.parametrize(("key", "answer"), [("f", FINISH), ("r", ROLL_BACK)])
async def test_quit_of_demo_offers_choice_for_running_migration(key: str, answer: str) -> None:
    app = demo_over(prepared_migrations.migration())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q")
        await settle(pilot, lambda: isinstance(app.screen, QuitScreen))
        text = screen_text(app)
        for words in ("nano is being migrated from small to large", "finish it", "roll it back", "esc  stay"):
            assert words in text
        await pilot.press("escape")
        await settle(pilot, lambda: not isinstance(app.screen, QuitScreen))
        assert app.return_value is None
        await pilot.press("q", key)
        await settle(pilot)
    assert (app.return_code, app.quit_choice) == (0, answer)


async def test_quit_of_demo_names_steps_lost_by_rollback() -> None:
    app = MidstreamApp(
        PreparedSnapshots(prepared_migrations.moved_fleet()),
        PreparedActions(prepared_migrations.certified()),
        demo=True,
        clock=lambda: NOW,
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q")
        await settle(pilot, lambda: isinstance(app.screen, QuitScreen))
        assert "36 steps on large are discarded" in screen_text(app)


async def test_quit_of_demo_during_rollback_waits_for_it() -> None:
    """On the old code the dialog offered to finish the migration, or to roll it back."""
    app = demo_over(prepared_migrations.migration(phase=phase_names.ROLLBACK))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q", "r")
        await settle(pilot)
        text = screen_text(app)
        assert "nano returns from large to small." in text
        assert "wait for it, then end the demo" in text
        assert "roll it back" not in text
        await pilot.press("f")
        await settle(pilot)
    assert (app.return_code, app.quit_choice) == (0, FINISH)


async def test_quit_of_read_only_demo_offers_no_rollback() -> None:
    app = demo_over(prepared_migrations.migration(), readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q", "r")
        await settle(pilot)
        assert isinstance(app.screen, QuitScreen)
        assert "roll it back" not in screen_text(app)


@pytest.mark.parametrize("state", [migration_state.INTERRUPTED, migration_state.COMPLETED, migration_state.ROLLED_BACK])
async def test_quit_of_demo_without_migration_exits(state: str) -> None:
    app = demo_over(prepared_migrations.migration(state))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q")
        await settle(pilot)
    assert app.return_code == 0


async def test_quit_outside_demo_leaves_migration_running() -> None:
    app = demo_over(prepared_migrations.migration(), demo=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("q")
        await settle(pilot)
    assert app.return_code == 0


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (migration_state.RUNNING, "1 migrating"),
        (migration_state.INTERRUPTED, "1 interrupted"),
        (migration_state.ROLLBACK_INCOMPLETE, "1 interrupted"),
        (migration_state.DAMAGED, "1 interrupted"),
        (migration_state.COMPLETED, ""),
    ],
)
async def test_only_running_migrations_count_as_running(state: str, words: str) -> None:
    app = demo_over(prepared_migrations.migration(state))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        top = screen_text(app).splitlines()[0]
        assert words in top
        assert ("migrating" in top) == (state == migration_state.RUNNING)


async def test_damaged_journals_are_shown_in_list_and_screen() -> None:
    damage = ("plan.json is empty", "fleet.yaml is missing")
    app = demo_over(prepared_migrations.migration(migration_state.INTERRUPTED, damage=damage), demo=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3")
        await settle(pilot)
        for line in damage:
            assert f"✗ {line}" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert "✗ plan.json is empty; fleet.yaml is missing (c restores" in screen_text(app)


# ------------------------------------------------------------------------------------------ in a real terminal


def start_app(terminal: Terminal, tmp_path: Path) -> int:
    """Start the terminal UI over a fleet of this machine; return its pid."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts:\n  here: {{type: local, root: "{tmp_path}/root"}}\n')
    words = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
    terminal.start(words, {"MIDSTREAM_STATE": str(tmp_path / "state"), "TERM": "screen-256color"})
    terminal.wait(lambda screen: "1 live" in screen, "the host")
    return terminal.pid


def wait_process_exit(pid: int, timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{pid} is still running"
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_app_exits_on_signal(number: signal.Signals, terminal: Terminal, tmp_path: Path) -> None:
    os.kill(start_app(terminal, tmp_path), number)
    code, _ = terminal.wait_exit(60)
    assert code == 128 + number
    assert "Hosts" not in terminal.screen, "the terminal is restored"
    assert "Traceback" not in terminal.screen


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
def test_app_exits_with_its_terminal(terminal: Terminal, tmp_path: Path) -> None:
    pid = start_app(terminal, tmp_path)
    terminal.close()
    wait_process_exit(pid)


@pytest.mark.system
@pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")
def test_app_exits_with_its_terminal_without_a_signal(tmp_path: Path) -> None:
    """A pseudo-terminal that is not the controlling one: only a read shows that it was closed."""
    import pty
    import subprocess

    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'hosts:\n  here: {{type: local, root: "{tmp_path}/root"}}\n')
    terminal_side, app_side = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "midstream", "--fleet", str(fleet)],
        stdin=app_side, stdout=app_side, stderr=app_side, start_new_session=True,
        env={**os.environ, "MIDSTREAM_STATE": str(tmp_path / "state"), "TERM": "xterm"},
    )  # fmt: skip
    os.close(app_side)
    output = b""
    while b"Runs" not in output:
        output += os.read(terminal_side, 4096)
    os.close(terminal_side)
    assert child.wait(60) == 128 + signal.SIGHUP
