"""Run tasks in threads with a bounded number of bytes in flight."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

IN_FLIGHT = 256 << 20  # bytes
THREADS = min(16, 2 * (os.cpu_count() or 1))

Task = tuple[int, Callable[[], None]]


def run_bounded(tasks: Iterable[Task], *, in_flight: int = IN_FLIGHT, threads: int = THREADS) -> None:
    """Run ``(bytes, function)`` tasks, in the order given; those under way hold at most ``in_flight`` bytes.

    A task larger than the bound runs alone. The first exception stops the beginning of further tasks and is raised when
    those under way have ended.
    """
    running: dict[Future[None], int] = {}
    failed = threading.Event()

    def guarded(function: Callable[[], None]) -> None:
        if failed.is_set():
            return
        try:
            function()
        except BaseException:
            failed.set()
            raise

    def settle() -> None:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            del running[future]
            future.result()

    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint") as pool:
        for size, function in tasks:
            while running and (sum(running.values()) + size > in_flight or len(running) >= 2 * threads):
                settle()
            running[pool.submit(guarded, function)] = size
        while running:
            settle()
