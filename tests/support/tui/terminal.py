"""A command in a terminal: a private tmux server that exits with the test."""

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
    """One command in one window. ``screen`` is the text that a user sees."""

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
        """Run the command. The window stays open after it exits."""
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items())
        width, height = map(str, self._size)
        # tmux' exit code of a pane (pane_dead_status) sometimes stays empty.
        code = shlex.quote(str(self._code))
        # readline, which pytest imports, sets the size of another terminal in the environment.
        run = f"env -u COLUMNS -u LINES {words} {shlex.join(argv)}"
        command = f"{run}; echo $? > {code}.new; mv {code}.new {code}; exec sleep 600"
        self._tmux("new-session", "-d", "-x", width, "-y", height, command)

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def history(self) -> str:
        """The text that has scrolled away, and the screen. Wrapped lines are joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code, None while it is running."""
        return int(self._code.read_text()) if self._code.exists() else None

    @property
    def pid(self) -> int:
        """Process id of the command."""
        shell = self._tmux("list-panes", "-F", "#{pane_pid}").strip()
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", shell], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0])

    def press(self, *keys: str) -> None:
        """Press keys (by tmux' names) or type words, in order."""
        self._tmux("send-keys", *keys)

    def mouse(self, *reports: str) -> None:
        """Send what a mouse reports (SGR) at once.

        ``0;40;10M`` is the left button on column 40 of row 10, ``m`` its release; 32 is a drag, 64 and 65 the wheel.
        """
        self._tmux("send-keys", "-l", "".join(f"\x1b[<{report}" for report in reports))

    def click(self, column: int, row: int, times: int = 1) -> None:
        self.mouse(*(f"0;{column};{row}{end}" for _ in range(times) for end in "Mm"))

    def type(self, line: str) -> None:
        """Type a line and press enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, condition: Callable[[str], object], what: str, timeout: float = 60.0) -> str:
        """Return the first screen for which ``condition`` is true."""
        deadline = time.monotonic() + timeout
        while True:
            screen = self.screen
            if condition(screen):
                return screen
            assert self.exit_code is None, f"exited ({self.exit_code}) before {what}:\n{screen}"
            assert time.monotonic() < deadline, f"timed out after {timeout:.0f} s: {what}\n{screen}"
            time.sleep(0.1)

    def wait_exit(self, timeout: float) -> tuple[int, float]:
        """Return the exit code, and the seconds until the command exited."""
        start_time = time.monotonic()
        while (code := self.exit_code) is None:
            assert time.monotonic() - start_time < timeout, f"still running after {timeout:.0f} s\n{self.screen}"
            time.sleep(0.05)
        return code, time.monotonic() - start_time

    def close(self) -> None:
        """End the server and what runs in it."""
        if TMUX is not None:
            subprocess.run([TMUX, "-S", self._socket, "kill-server"], capture_output=True, timeout=30)
