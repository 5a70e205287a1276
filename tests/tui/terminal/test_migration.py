"""A migration to a real SSH host in a terminal of 80x24: left, killed, resumed, rolled back."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.sshd import Lab, lab
from support.command_line import SLOWER, TINY, Run, midstream, runs
from support.tui.terminal import TMUX, Terminal

__all__ = ["lab", "runs"]

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

ENGINE_TIMEOUT = 300.0  # seconds for work of engines
COPY = "250kB/s"  # slow enough to leave the screen and return
COPIED = re.compile(r"\d+% +[\d.]+ [kM]?B of [\d.]+ [kM]?B")
TRAINING = (*SLOWER, "--trainer.num_train_steps", "100000", "--trainer.train_batch_size", "64")


@pytest.mark.slow  # three engines start on two cores
@pytest.mark.timeout(1500)
def test_terminal_migration_survives_kill_and_is_rolled_back(
    tmp_path_factory: pytest.TempPathFactory,
    lab: Lab,
    runs: Callable[[Path | str, str], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = lab.directory / "state"
    monkeypatch.setenv("MIDSTREAM_STATE", str(state))
    here, there = lab.local("here", devices=1), lab.host("there", devices=2)
    there.config = type(there.config)(**{**vars(there.config), "bandwidth_limit": COPY})
    fleet = lab.fleet_file(here=here, another=lab.local("another", devices=1), there=there.config)
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "here", "--run-id", "nano", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "nano"), runs(there.root, "nano")
    source.wait_step(3, ENGINE_TIMEOUT)

    env = {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"}
    command = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
    first, second = (Terminal(tmp_path_factory.mktemp("tmux")) for _ in range(2))
    try:
        first.start(command, env)
        first.wait(lambda screen: "nano" in screen and "training" in screen and "3 live" in screen, "the run")
        first.press("Enter")
        first.wait(lambda screen: "1 Curves" in screen and "train/loss" in screen, "its curves")
        first.press("m")
        first.wait(lambda screen: re.search(r"> another", screen) and "downtime" in screen, "a plan", ENGINE_TIMEOUT)
        first.press("j")
        first.wait(
            lambda screen: re.search(r"> there +2×cpu", screen) and re.search(r"to +there", screen),
            "its plan",
            ENGINE_TIMEOUT,
        )
        first.press("Enter")
        ready = first.wait(lambda screen: "Ready." in screen or "Cannot migrate" in screen, "preflight", ENGINE_TIMEOUT)
        assert "Ready." in ready, ready
        first.press("Enter")
        first.wait(lambda screen: "type nano and press enter" in screen, "the question")
        first.press("nan", "Enter")
        first.wait(lambda screen: "type nano to confirm" in screen, "a name that is not the run's")
        first.press("o", "Enter")
        first.wait(COPIED.search, "a copy", ENGINE_TIMEOUT)
        first.press("Escape")
        first.wait(lambda screen: "1 Curves" in screen and "detached" in screen, "the run during the migration")
        first.press("Escape")
        first.wait(lambda screen: "3 Migrations 1" in screen, "the fleet")
        first.press("3", "Enter")
        first.wait(lambda screen: "▶" in screen and COPIED.search(screen), "the migration again")
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait_exit(60)[0] == 128 + signal.SIGKILL

        second.start(command, env)
        second.wait(lambda screen: "1 migrating" in screen and "3 Migrations 1" in screen, "a running migration")
        second.press("3", "Enter")
        proof = second.wait(lambda screen: re.search(r"sealed at [\d,]+", screen), "the certificate", ENGINE_TIMEOUT)
        for claim in ("state", "data", "reference losses"):
            assert re.search(rf"✓ {claim} +verified", proof), proof
        assert max(map(len, proof.splitlines())) <= 80
        second.press("r")
        second.wait(lambda screen: "Roll back nano" in screen, "the question")
        second.press("nano", "Enter")
        second.wait(lambda screen: "here owns the run again" in screen, "the source", ENGINE_TIMEOUT)
        second.press("o")
        second.wait(lambda screen: re.search(r"training +here", screen), "the run on its source", ENGINE_TIMEOUT)
        second.press("q")
        assert second.wait_exit(100)[0] == 0
    finally:
        first.close()
        second.close()
    assert not target.running
    assert source.running
    assert source.fence.owner == "here"
