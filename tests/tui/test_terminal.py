"""The command in a real terminal, as a person uses it: keys in, text on the screen out."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_engine import records
from simulators.sshd import Lab
from support.run_directory import RunDirectory
from tui.terminal import TMUX, Terminal

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

MIDSTREAM = [sys.executable, "-m", "midstream"]


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("tmux"))
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A place for migrations and the demo; what still runs there at the end is killed."""
    yield tmp_path / "state"
    for pid in processes(tmp_path / "state"):
        os.kill(pid, signal.SIGKILL)


def processes(state: Path) -> dict[int, str]:
    """pid -> command line of all that was started with this place in its environment, engines and movers too."""
    wanted = f"MIDSTREAM_STATE={state}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def step_on(screen: str) -> int:
    """The step in the line of facts of a run that trains; -1 where there is none."""
    assert "✗ failed" not in screen, screen
    found = re.search(r"training .* step ([\d,]+)/", screen)
    return int(found[1].replace(",", "")) if found else -1


PATIENCE = 400.0  # seconds for what an engine does
PREFLIGHT = re.compile(r"Ready\.|cannot be moved")  # the verdict, which is in sight at any size


@pytest.mark.timeout(1500)  # an engine compiles twice: minutes where others use the machine
def test_the_demo_is_moved_with_keys_and_leaves_nothing_running(terminal: Terminal, state: Path) -> None:
    terminal.start([*MIDSTREAM, "--demo"], {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"})
    first = step_on(terminal.wait(lambda screen: step_on(screen) > 0, "a first step", PATIENCE))
    terminal.wait(lambda screen: step_on(screen) > first, "a further step", PATIENCE)
    terminal.press("z")
    terminal.wait(lambda screen: "last 50%" in screen, "the last half of the curve")
    terminal.press("0")
    terminal.wait(lambda screen: "last 50%" not in screen, "all of the curve")

    terminal.press("m")
    plan = terminal.wait(lambda screen: "downtime" in screen, "the plan", PATIENCE)
    assert re.search(r"> large +4×cpu", plan), plan
    terminal.press("Enter")
    checked = terminal.wait(lambda screen: PREFLIGHT.search(screen) is not None, "the preflight", PATIENCE)
    assert "Ready." in checked, checked
    terminal.press("Enter")
    terminal.wait(lambda screen: "type demo and press enter" in screen, "the question")
    terminal.press("demo", "Enter")
    terminal.wait(lambda screen: "command log" in screen or "✓ certified" in screen, "the move under way")
    terminal.press("Escape")
    terminal.wait(lambda screen: "1 Curves" in screen, "the run: the move goes on")
    terminal.press("Escape")
    terminal.wait(lambda screen: "3 Migrations 1" in screen, "the fleet")
    terminal.press("3", "Enter")
    terminal.wait(lambda screen: "✓ certified" in screen, "the certificate", PATIENCE)
    proof = terminal.wait(lambda screen: re.search(r"sealed at \d+", screen), "the seam, which no toast covers")
    for claim in ("state", "data", "reference losses"):
        assert re.search(rf"✓ {claim} +verified", proof), proof
    sealed = re.search(r"sealed at (\d+)", proof)
    assert sealed is not None, proof
    assert int(sealed[1]) > first
    assert max(map(len, proof.splitlines())) <= 80

    terminal.resize(160, 45)
    unfolded = "the restored state is the sealed state, root digest"
    terminal.wait(lambda screen: unfolded in screen, "the certificate on the larger screen")
    terminal.press("o")
    moved = terminal.wait(lambda screen: step_on(screen) >= int(sealed[1]), "the run on its new target", PATIENCE)
    assert "large 4×cpu" in moved

    terminal.press("q")
    asked = terminal.wait(
        lambda screen: "A move is under way" in screen or "stopping the demo's run" in screen, "the question"
    )
    if "A move is under way" in asked:  # its healthy steps are not done yet
        assert "end with it" in asked
        terminal.press("f")
        terminal.wait(lambda screen: "the demo ends after the move of demo" in screen, "the end of the move")
        terminal.press("C-c")
    code, _ = terminal.wait_end(PATIENCE)
    assert code == 0, terminal.screen
    assert "stopping the demo's run on large" in terminal.screen
    assert "Traceback" not in terminal.screen
    deadline = time.monotonic() + 120
    while left := processes(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def recorded_run(root: Path, run_id: str) -> None:
    """A run of three hundred steps, as an engine would have left it."""
    run = RunDirectory(root, run_id)
    run.fence(1, holder="gpu1")
    run.status(1, records.TRAINING, 300)
    run.rows(1, *range(300))
    run.log(1, "".join(f"2026-11-21T10:{second // 60:02}:{second % 60:02}Z I step {second}\n" for second in range(300)))


def test_a_session_that_is_killed_is_come_back_to_and_shown_again(
    tmp_path_factory: pytest.TempPathFactory, state: Path, lab: Lab
) -> None:
    """Filter, look closer, resize; kill -9; start again as one left it; the recording of what was killed."""
    server = lab.host("gpu1")
    for name in ("alpha", "beta"):
        recorded_run(server.root, name)
    fleet, recording = lab.fleet_file(gpu1=server.config), state.parent / "session"
    env = {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"}
    terminals = [Terminal(tmp_path_factory.mktemp("tmux")) for _ in range(3)]
    first, second, third = terminals
    try:
        first.start([*MIDSTREAM, "--fleet", str(fleet), "--record", str(recording)], env)
        first.wait(lambda screen: "alpha" in screen and "beta" in screen, "both runs")
        first.press("/")
        first.wait(lambda screen: "!word" in screen, "the line to type into")
        first.press("run:bet", "Enter")
        first.wait(lambda screen: "1 of 2" in screen and "alpha" not in screen, "one of them")
        first.press("Enter")
        first.wait(lambda screen: "train/loss" in screen and "1 Curves" in screen, "the run")
        first.press("+", "v")
        first.wait(lambda screen: "last 62.5% log" in screen, "the tail of its curve, on a logarithmic scale")
        first.press("2")
        first.wait(lambda screen: "following" in screen, "the log")
        first.press("/")
        first.wait(lambda screen: "search  word" in screen, "the line to type into")
        first.press("step 123", "Enter")
        first.wait(lambda screen: "> 2026-11-21T10:02:03Z" in screen or ">2026-11-21T10:02:03Z" in screen, "the line")
        first.resize(160, 45)
        first.wait(lambda screen: max(map(len, screen.splitlines())) > 100, "the larger screen")
        first.resize(80, 24)
        [pid] = [pid for pid, line in processes(state).items() if "--record" in line]
        os.kill(pid, signal.SIGKILL)
        code, _ = first.wait_end(60)
        assert code == 128 + signal.SIGKILL

        second.start([*MIDSTREAM, "--fleet", str(fleet)], env)
        second.wait(lambda screen: "alpha" in screen and "training" in screen, "the runs again")
        second.press("Enter")
        second.wait(lambda screen: re.search(r"train/loss .* log ", screen), "the scale that was chosen")
        second.press("q")
        assert second.wait_end(60)[0] == 0

        third.start([*MIDSTREAM, "--replay", str(recording)], env)
        third.wait(lambda screen: "alpha" in screen and "beta" in screen and "read-only" in screen, "the recording")
        third.press("q")
        assert third.wait_end(60)[0] == 0
    finally:
        for each in terminals:
            each.close()


def test_q_does_not_wait_for_a_host_that_has_fallen_silent(terminal: Terminal, state: Path, lab: Lab) -> None:
    server = lab.host("gpu1")
    run = RunDirectory(server.root)
    run.fence(1, holder="gpu1")
    run.status(1, records.TRAINING, 3)
    run.rows(1, 0, 1, 2)
    fleet = lab.fleet_file(gpu1=server.config, here=lab.local("here"))
    terminal.start([*MIDSTREAM, "--fleet", str(fleet)], {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"})
    terminal.wait(lambda screen: "2 live" in screen and "training" in screen, "the run")
    stopped = server.sessions()
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        terminal.press("m")
        terminal.wait(lambda screen: "asking source and target" in screen, "a plan that asks in vain")
        terminal.press("q")
        code, _ = terminal.wait_end(100)  # the host stays silent for as long
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert code == 0, terminal.screen
    assert "Traceback" not in terminal.screen
