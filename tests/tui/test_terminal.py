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

from lab.sshd import Lab
from midstream_engine import records
from run_directory import RunDirectory
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


# The title when all checks are in, and what follows them where there is room for it.
PREFLIGHT = re.compile(r"preflight: \d+ checks(, \d+ (warned|failed))+|Ready\.|cannot be moved")


def test_the_demo_is_moved_with_keys_and_leaves_nothing_running(terminal: Terminal, state: Path) -> None:
    terminal.start([*MIDSTREAM, "--demo"], {"MIDSTREAM_STATE": str(state), "TERM": "screen-256color"})
    first = step_on(terminal.wait(lambda screen: step_on(screen) > 0, "a first step", 120))
    terminal.wait(lambda screen: step_on(screen) > first, "a further step")

    terminal.press("m")
    plan = terminal.wait(lambda screen: "downtime" in screen, "the plan")
    assert re.search(r"> large +4×cpu", plan), plan
    terminal.press("Enter")
    checked = terminal.wait(lambda screen: PREFLIGHT.search(screen) is not None, "the preflight")
    assert "failed" not in checked, checked
    terminal.press("Enter")
    terminal.wait(lambda screen: "type demo and press enter" in screen, "the question")
    terminal.press("demo", "Enter")
    proof = terminal.wait(lambda screen: "✓ certified" in screen, "the certificate", 120)
    for claim in ("state", "data", "witness"):
        assert re.search(rf"✓ {claim} +proven", proof), proof
    sealed = re.search(r"sealed at (\d+)", proof)
    assert sealed is not None, proof
    assert int(sealed[1]) > first
    assert max(map(len, proof.splitlines())) <= 80

    terminal.resize(160, 45)
    unfolded = "the restored state is the sealed state, root digest"
    terminal.wait(lambda screen: unfolded in screen, "the certificate on the larger screen")
    terminal.press("o")
    moved = terminal.wait(lambda screen: step_on(screen) >= int(sealed[1]), "the run on its new target")
    assert "large 4×cpu" in moved

    terminal.press("q")
    code, _ = terminal.wait_end(90)
    assert code == 0, terminal.screen
    assert "stopping the demo's run on large" in terminal.screen
    assert "Traceback" not in terminal.screen
    deadline = time.monotonic() + 20
    while left := processes(state):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


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
        code, seconds = terminal.wait_end(60)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert code == 0, terminal.screen
    assert "Traceback" not in terminal.screen
    assert seconds < 15, "it waited for the host"
