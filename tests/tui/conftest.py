"""Fixtures of the terminal UI's tests."""

import asyncio

import textual._wait
import textual.app
import textual.pilot

from simulators.sshd import lab

__all__ = ["lab"]

# Textual's pilot waits after each key until the process is idle, and looks once in these seconds (20 ms by itself):
# half of the time of these tests.
textual._wait.SLEEP_GRANULARITY = 0.004
textual._wait.SLEEP_IDLE = textual._wait.SLEEP_GRANULARITY / 20
ROUNDS = 10_000  # of the event loop at most: an application may always have something to do

processor_idle = textual._wait.wait_for_idle


async def wait_for_idle(min_sleep: float = textual._wait.SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
    """Wait until the event loop has nothing to do.

    To Textual a process that gets no processor time is idle, also one that waits for its turn on a busy machine.
    """
    await processor_idle(min_sleep, max_sleep)
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(ROUNDS):
        if not ready:
            break
        await asyncio.sleep(0)


for module in (textual.app, textual.pilot):
    vars(module)["wait_for_idle"] = wait_for_idle
