"""The terminal UI over a real SSH server: first contact, watch, shell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.tui.terminal import TMUX, Terminal

pytestmark = [pytest.mark.system, pytest.mark.skipif(TMUX is None, reason="no tmux: apt-get install tmux")]


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("tmux"), 160, 45)
    yield made
    made.close()


def test_screen_accepts_watches_and_opens_shell_on_host(lab: Lab, terminal: Terminal, tmp_path: Path) -> None:
    server = lab.host("gpu1", devices=2)
    server.known_hosts.unlink()
    fleet = lab.fleet_file(gpu1=server.config)
    argv = [sys.executable, "-m", "midstream", "--fleet", str(fleet)]
    terminal.start(argv, {"MIDSTREAM_STATE": str(tmp_path), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"})
    screen = terminal.wait(lambda text: "First contact with gpu1" in text, "the question")
    assert server.fingerprint in screen
    terminal.press("y", "e", "s", "Enter")
    terminal.wait(lambda text: "1 live" in text, "the host, live")
    assert server.known_hosts.exists()
    terminal.press("1", "s")
    terminal.wait(lambda text: re.search(r"midstream: shell on gpu1.*[#$]\s*$", text, re.DOTALL), "a prompt")
    terminal.press('echo "port ${SSH_CONNECTION##* }"', "Enter")
    terminal.wait(lambda text: f"port {server.port}" in text, "the host's answer")
    terminal.press("exit", "Enter")
    terminal.wait(lambda text: "1 Hosts 1" in text and "gpu1" in text, "the fleet screen")
    terminal.press("q")
    code, _ = terminal.wait_exit(30)
    assert code == 0
