"""A mouse in a real terminal: rows, headings, tabs, wheel, and the curve."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from midstream_core import records
from support.run_directory import RunDirectory
from support.tui.terminal import TMUX, Terminal

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]
RUNS = 30


@pytest.fixture
def opened(terminal: Terminal, tmp_path: Path) -> Terminal:
    """The list of runs of a host of this machine."""
    for number in range(RUNS):
        run = RunDirectory(tmp_path / "root", f"run-{number:02}")
        run.fence(1, owner="here")
        run.status(1, records.STOPPED, 300 - number)
        run.rows(1, *range(300 - number))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"hosts: {{here: {{type: local, root: {tmp_path / 'root'}}}}}\n")
    env = {"MIDSTREAM_STATE": str(tmp_path / "state"), "TERM": "screen-256color"}
    terminal.start([sys.executable, "-m", "midstream", "--fleet", str(fleet)], env)
    terminal.wait(lambda screen: f"2 Runs {RUNS}" in screen and "stopped" in screen, "the runs")
    return terminal


def place(terminal: Terminal, text: str) -> tuple[int, int]:
    """Return column and row of a text on the screen, from 1 on."""
    for row, line in enumerate(terminal.screen.splitlines(), 1):
        if text in line:
            return line.index(text) + 1, row
    raise AssertionError(f"no {text!r} on\n{terminal.screen}")


def test_terminal_mouse_chooses_sorts_scrolls_and_opens(opened: Terminal) -> None:
    def click(text: str, times: int = 1) -> None:
        opened.click(*place(opened, text), times)

    click("run-04")
    opened.wait(lambda screen: "> run-04" in screen and "─ run-04 ─" in screen, "the row and its pane")
    opened.mouse(*["65;10;8M"] * 4)
    opened.wait(lambda screen: "run-00" not in screen and "run-16" in screen, "a scrolled list")
    click("STEP")
    opened.wait(lambda screen: "STEP↑" in screen, "the order")
    click("1 Hosts")
    opened.wait(lambda screen: "LINK" in screen, "the hosts")
    click("2 Runs")
    opened.wait(lambda screen: "STEP" in screen, "the runs")
    click("run-20 ", times=2)
    opened.wait(lambda screen: "1 Curves" in screen, "the run")
    click("2 Logs")
    opened.wait(lambda screen: "f Follow" in screen, "its log")
    click("1 Curves")
    opened.wait(lambda screen: "train/loss" in screen, "its curve")

    opened.click(40, 10)
    screen = opened.wait(lambda screen: re.search(r"train/loss step \d+ ", screen), "the value under the pointer")
    step = re.search(r"step (\d+)", screen)
    opened.mouse("64;40;10M", "64;40;10M")
    opened.wait(lambda screen: "zoomed" in screen, "a part of the curve")
    opened.mouse("0;40;10M", "32;50;10M", "32;60;10M", "0;60;10m")
    opened.wait(lambda screen: place(opened, "▲")[0] > 50 if "▲" in screen else False, "the curve, dragged")
    assert step is not None
    assert f"train/loss step {step[1]} " in opened.screen, "a drag leaves the chosen step"
    opened.click(40, 10, times=2)
    opened.wait(lambda screen: "zoomed" not in screen, "all of the curve")
    opened.press("q")
    assert opened.wait_exit(60)[0] == 0
