"""Fixtures of the terminal UI's tests."""

import textual._wait

from simulators.sshd import lab

__all__ = ["lab"]

# Textual's pilot waits after each key until the process is idle, and looks once in these seconds (20 ms by itself):
# half of the time of these tests.
textual._wait.SLEEP_GRANULARITY = 0.004
textual._wait.SLEEP_IDLE = textual._wait.SLEEP_GRANULARITY / 20
