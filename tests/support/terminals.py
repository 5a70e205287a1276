"""Run a program in a pseudo-terminal that the test types into."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

PATIENCE = 60.0


class TerminalProgram:
    """Python code that runs with a controlling terminal."""

    def __init__(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.text = ""
        self._seen = 0
        argv: Sequence[str] = [sys.executable, "-c", code, *arguments]
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, argv, {**os.environ, **(env or {})})

    def expect(self, pattern: str) -> str:
        """Wait until the terminal has shown this text, after the text of the previous call."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.text[self._seen :])):
            assert time.monotonic() < deadline, f"never seen: {pattern!r} in {self.text!r}"
            if not self._read(1.0):
                raise AssertionError(f"it ended without {pattern!r}: {self.text!r}")
        self._seen += found.end()
        return found[0]

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait(self) -> int:
        """Wait for the program, and return its exit code."""
        while self._read(1.0):
            pass
        _, status = os.waitpid(self._pid, 0)
        os.close(self._terminal)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._terminal)

    def _read(self, patience: float) -> bool:
        """Read output. False at its end."""
        if not select.select([self._terminal], [], [], patience)[0]:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux' way of saying that the other side is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
