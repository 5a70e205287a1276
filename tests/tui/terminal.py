"""A terminal with a command in it: a tmux server of its own, which dies with the test."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

TMUX = shutil.which("tmux")


class Terminal:
    """One command in one window. ``screen`` is the text that a person would see."""

    def __init__(self, directory: Path, width: int = 80, height: int = 24) -> None:
        self._socket = str(directory / "tmux")
        self._code = directory / "exit-code"
        self._size = (width, height)

    def _tmux(self, *arguments: str) -> str:
        assert TMUX is not None
        done = subprocess.run(
            [TMUX, "-S", self._socket, "-f", os.devnull, *arguments], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, argv: list[str], env: Mapping[str, str]) -> None:
        """Run the command. The window stays once it has ended."""
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items())
        width, height = map(str, self._size)
        # tmux' own account of the exit code (pane_dead_status) is sometimes empty for good.
        code = shlex.quote(str(self._code))
        # readline, which pytest imports, leaves the size of another terminal in the environment.
        run = f"env -u COLUMNS -u LINES {words} {shlex.join(argv)}"
        command = f"{run}; echo $? > {code}.new; mv {code}.new {code}; exec sleep 600"
        self._tmux("new-session", "-d", "-x", width, "-y", height, command)

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def ended(self) -> int | None:
        """The command's exit code, None while it runs."""
        return int(self._code.read_text()) if self._code.exists() else None

    @property
    def pid(self) -> int:
        """Of the command."""
        shell = self._tmux("list-panes", "-F", "#{pane_pid}").strip()
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", shell], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])

    def press(self, *keys: str) -> None:
        """Keys by tmux' names, and words, one after the other."""
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, holds: Callable[[str], object], what: str, timeout: float = 60.0) -> str:
        """The first screen of which ``holds``."""
        deadline = time.monotonic() + timeout
        while True:
            screen = self.screen
            if holds(screen):
                return screen
            assert self.ended is None, f"it ended ({self.ended}) before {what}:\n{screen}"
            assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what}\n{screen}"
            time.sleep(0.1)

    def wait_end(self, timeout: float) -> tuple[int, float]:
        """The exit code, and the seconds that it took from now on."""
        begun = time.monotonic()
        while (code := self.ended) is None:
            assert time.monotonic() - begun < timeout, f"it still runs after {timeout:.0f} s\n{self.screen}"
            time.sleep(0.05)
        return code, time.monotonic() - begun

    def close(self) -> None:
        """End the server and what runs in it."""
        if TMUX is not None:
            subprocess.run([TMUX, "-S", self._socket, "kill-server"], capture_output=True, timeout=30)
