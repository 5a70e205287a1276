"""A run of another trainer in a terminal of 80x24: its curve, its log, and its move by key."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream.migrate.journal.migration_state import COMPLETED
from midstream.migrate.migration_process import follow
from simulators.sshd import Lab, lab
from support.command_line import Run, midstream, runs
from support.trainers.script_trainer import write_script
from support.tui.terminal import TMUX, Terminal

__all__ = ["lab", "runs"]

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

MOVE_TIMEOUT = 180.0  # seconds for a plan, or a phase, on a busy machine


@pytest.mark.slow
def test_terminal_shows_a_script_and_migrates_it(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    lab: Lab,
    runs: Callable[[Path | str, str], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = lab.directory / "state"
    monkeypatch.setenv("MIDSTREAM_STATE", str(state))
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=20000, every=25)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "script")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "script"), runs(there.root, "script")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    terminal = Terminal(tmp_path_factory.mktemp("tmux"))
    try:
        terminal.start(
            [sys.executable, "-m", "midstream", "--fleet", str(fleet)],
            {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"},
        )
        terminal.wait(lambda screen: "script" in screen and "training" in screen and "2 live" in screen, "the run")
        terminal.press("Enter")
        curve = re.compile("[\u2801-\u28ff]{3}")  # dots of a curve
        terminal.wait(lambda screen: "train/loss" in screen and curve.search(screen), "its curve")
        terminal.press("2")
        terminal.wait(lambda screen: "script in " in screen or "attempt 1 of script" in screen, "its log")
        terminal.press("1", "m")
        terminal.wait(lambda screen: re.search(r"> there", screen) and "downtime" in screen, "a plan", MOVE_TIMEOUT)
        terminal.press("Enter")
        ready = terminal.wait(
            lambda screen: "Ready." in screen or "Cannot migrate" in screen, "preflight", MOVE_TIMEOUT
        )
        assert "Ready." in ready, ready
        terminal.press("Enter")
        terminal.wait(lambda screen: "type script and press enter" in screen, "the question")
        terminal.press("script", "Enter")
        proof = terminal.wait(lambda screen: "✓ completed" in screen, "the certificate", MOVE_TIMEOUT)
        for claim in ("state", "step", "learning rate", "replay overlap"):
            assert re.search(rf"✓ {claim} +verified", proof), proof
        target.wait(lambda run: run.running and len(run.rows()) > 3, "the run there", MOVE_TIMEOUT)
        terminal.press("q")
        terminal.wait_exit(60)
        [migration] = migration_ids()
        moved = MigrationDirectory(migration)
        for _ in follow(migration):  # until its process has ended
            pass
        assert moved.view().state == COMPLETED
    finally:
        terminal.close()
        for each in map(MigrationDirectory, migration_ids()):
            if each.is_locked():  # the test has failed in the middle of it
                os.kill(int((each.path / ".lock").read_text()), signal.SIGKILL)
    assert not source.running
