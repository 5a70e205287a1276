"""The command in a real terminal: keys in, text on the screen out."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream_core import records
from simulators.sshd import Lab
from support.run_directory import RunDirectory
from support.tui.terminal import TMUX, Terminal

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]

MIDSTREAM = [sys.executable, "-m", "midstream"]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """State directory of migrations and the demo; kills what is still running at the end."""
    yield tmp_path / "state"
    for pid in processes(tmp_path / "state"):
        os.kill(pid, signal.SIGKILL)


def processes(state: Path) -> dict[int, str]:
    """Return pid -> command line of all processes with this state directory in their environment."""
    wanted = f"MIDSTREAM_STATE={state}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has exited, or belongs to another user
    return found


def running_step(screen: str) -> int:
    """Return the step in the headline of a running run; -1 where there is none."""
    assert "✗ failed" not in screen, screen
    found = re.search(r"training .* step ([\d,]+)/", screen)
    return int(found[1].replace(",", "")) if found else -1


ENGINE_TIMEOUT = 400.0  # seconds for work of an engine
PREFLIGHT = re.compile(r"Ready\.|Cannot migrate")  # the verdict, which is visible at any size


@pytest.mark.timeout(1500)  # an engine compiles twice: minutes on a busy machine
def test_terminal_demo_migrates_by_keys_and_exits_cleanly(terminal: Terminal, state: Path) -> None:
    terminal.start([*MIDSTREAM, "--demo"], {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"})
    first = running_step(terminal.wait(lambda screen: running_step(screen) > 0, "a first step", ENGINE_TIMEOUT))
    terminal.wait(lambda screen: running_step(screen) > first, "a further step", ENGINE_TIMEOUT)
    terminal.press("z")
    terminal.wait(lambda screen: "last 50%" in screen, "the last half of the curve")
    terminal.press("0")
    terminal.wait(lambda screen: "last 50%" not in screen, "all of the curve")

    terminal.press("m")
    plan = terminal.wait(lambda screen: "downtime" in screen, "the plan", ENGINE_TIMEOUT)
    assert re.search(r"> large +4×cpu", plan), plan
    terminal.press("Enter")
    checked = terminal.wait(lambda screen: PREFLIGHT.search(screen) is not None, "the preflight", ENGINE_TIMEOUT)
    assert "Ready." in checked, checked
    terminal.press("Enter")
    terminal.wait(lambda screen: "type demo and press enter" in screen, "the question")
    terminal.press("demo", "Enter")
    terminal.wait(lambda screen: "command log" in screen or "✓ certified" in screen, "the migration")
    terminal.press("Escape")
    terminal.wait(lambda screen: "1 Curves" in screen, "the run during the migration")
    terminal.press("Escape")
    terminal.wait(lambda screen: "3 Migrations 1" in screen, "the fleet")
    terminal.press("3", "Enter")
    terminal.wait(lambda screen: "✓ certified" in screen, "the certificate", ENGINE_TIMEOUT)
    proof = terminal.wait(lambda screen: re.search(r"migrated at \d+", screen), "the seal, not covered by a toast")
    for claim in ("state", "data", "reference losses"):
        assert re.search(rf"✓ {claim} +verified", proof), proof
    sealed = re.search(r"migrated at (\d+)", proof)
    assert sealed is not None, proof
    assert int(sealed[1]) > first
    assert max(map(len, proof.splitlines())) <= 80

    terminal.resize(160, 45)
    unfolded = "the restored state is the source's last state, root digest"
    terminal.wait(lambda screen: unfolded in screen, "the certificate on the larger screen")
    terminal.press("o")
    moved = terminal.wait(
        lambda screen: running_step(screen) >= int(sealed[1]), "the run on its new target", ENGINE_TIMEOUT
    )
    assert "large 4×cpu" in moved

    terminal.press("q")
    question = terminal.wait(
        lambda screen: "hosts belong to the demo and end with it" in screen or "stopping the demo's run" in screen,
        "the question",
    )
    if "Running migration" in question:  # its first steps are not done yet
        terminal.press("f")
        terminal.wait(lambda screen: "the demo ends after the migration of demo" in screen, "the end of the migration")
        terminal.press("C-c")
    code, _ = terminal.wait_exit(ENGINE_TIMEOUT)
    assert code == 0, terminal.screen
    assert "stopping the demo's run on large" in terminal.screen
    assert "Traceback" not in terminal.screen
    deadline = time.monotonic() + 120
    while remaining := processes(state):
        assert time.monotonic() < deadline, remaining
        time.sleep(0.1)


def recorded_run(root: Path, run_id: str) -> None:
    """Create a run of 300 steps, as an engine leaves it."""
    run = RunDirectory(root, run_id)
    run.fence(1, owner="gpu1")
    run.status(1, records.TRAINING, 300)
    run.rows(1, *range(300))
    run.log(1, "".join(f"2026-11-21T10:{second // 60:02}:{second % 60:02}Z I step {second}\n" for second in range(300)))


def test_terminal_killed_session_is_restored_and_replayed(
    tmp_path_factory: pytest.TempPathFactory, state: Path, lab: Lab
) -> None:
    """Filter, zoom, resize; kill -9; restart in the same state; replay the killed session."""
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
        first.wait(lambda screen: "!state:failed" in screen, "the input line")
        first.press("run:bet", "Enter")
        first.wait(lambda screen: "1 of 2" in screen and "alpha" not in screen, "the filtered run")
        first.press("Enter")
        first.wait(lambda screen: "train/loss" in screen and "1 Curves" in screen, "the run")
        first.press("+", "v")
        first.wait(lambda screen: "last 62.5% log" in screen, "the tail of its curve, on a logarithmic scale")
        first.press("2")
        first.wait(lambda screen: "following" in screen, "the log")
        first.press("/")
        first.wait(lambda screen: "search: word" in screen, "the input line")
        first.press("step 123", "Enter")
        first.wait(lambda screen: "> 2026-11-21T10:02:03Z" in screen or ">2026-11-21T10:02:03Z" in screen, "the line")
        first.resize(160, 45)
        first.wait(lambda screen: max(map(len, screen.splitlines())) > 100, "the larger screen")
        first.resize(80, 24)
        [pid] = [pid for pid, line in processes(state).items() if "--record" in line]
        os.kill(pid, signal.SIGKILL)
        code, _ = first.wait_exit(60)
        assert code == 128 + signal.SIGKILL

        second.start([*MIDSTREAM, "--fleet", str(fleet)], env)
        second.wait(lambda screen: "1 of 2" in screen and "training" in screen, "the filter again")
        second.press("Enter")
        second.wait(lambda screen: re.search(r"train/loss .* log ", screen), "the chosen scale")
        second.press("q")
        assert second.wait_exit(60)[0] == 0

        third.start([*MIDSTREAM, "--replay", str(recording)], env)
        third.wait(lambda screen: "alpha" in screen and "beta" in screen and "read-only" in screen, "the recording")
        third.press("q")
        assert third.wait_exit(60)[0] == 0
    finally:
        for terminal in terminals:
            terminal.close()


def test_terminal_q_does_not_wait_for_unreachable_host(terminal: Terminal, state: Path, lab: Lab) -> None:
    server = lab.host("gpu1")
    run = RunDirectory(server.root)
    run.fence(1, owner="gpu1")
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
        terminal.wait(lambda screen: "planning ..." in screen, "a plan that cannot finish")
        terminal.press("q")
        code, _ = terminal.wait_exit(100)  # the host stays unreachable for that time
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert code == 0, terminal.screen
    assert "Traceback" not in terminal.screen


def test_terminal_after_ctrl_z_has_all_lines_again(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    recorded_run(tmp_path / "root", "alpha")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    terminal.start([*MIDSTREAM, "--fleet", str(fleet)], {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"})
    lines = ("midstream › Runs", "1 Hosts 1", "alpha", "? Help")
    terminal.wait(lambda screen: all(line in screen for line in lines), "the run")
    terminal.press("C-z")
    terminal.wait(lambda screen: "midstream" not in screen, "the shell's screen")
    os.kill(terminal.pid, signal.SIGCONT)  # as fg does
    terminal.wait(lambda screen: all(line in screen for line in lines), "all lines", 20.0)
    terminal.press("q")
    assert terminal.wait_exit(60)[0] == 0


def test_terminal_without_utf_8_has_ascii_signs(terminal: Terminal, state: Path, tmp_path: Path) -> None:
    recorded_run(tmp_path / "root", "alpha")
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    env = {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color", "PYTHONIOENCODING": "latin-1"}
    terminal.start([*MIDSTREAM, "--fleet", str(fleet)], env)
    screen = terminal.wait(lambda screen: "alpha" in screen and "? Help" in screen, "the run")
    assert screen.isascii()
    assert "\\u" not in screen
    terminal.press("q")
    assert terminal.wait_exit(60)[0] == 0
