"""Run tasks in threads with a bounded number of bytes in flight."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

IN_FLIGHT = 256 << 20  # bytes
THREADS = min(16, 2 * (os.cpu_count() or 1))

Task = tuple[int, Callable[[], None]]


def run_bounded(tasks: Iterable[Task], *, in_flight: int = IN_FLIGHT, threads: int = THREADS) -> None:
    """Run ``(bytes, function)`` tasks, begun in the order given; those under way hold at most ``in_flight`` bytes.

    A task larger than the bound runs alone. The first exception stops the beginning of further tasks and is raised when
    those under way have ended.
    """
    upcoming = iter(tasks)
    taking = threading.Lock()  # held by the thread whose task is the next to begin, while it waits for room
    room = threading.Condition()
    held = 0
    failed = threading.Event()

    def begin() -> Task | None:
        """The next task, once there is room for it. None where there is none, or another failed."""
        nonlocal held
        with taking:
            if failed.is_set() or (task := next(upcoming, None)) is None:
                return None
            with room:
                room.wait_for(lambda: not held or held + task[0] <= in_flight)
                if failed.is_set():
                    return None
                held += task[0]
            return task

    def work() -> None:
        nonlocal held
        try:
            while (task := begin()) is not None:
                size, function = task
                try:
                    function()
                finally:
                    with room:
                        held -= size
                        room.notify_all()
        except BaseException:
            failed.set()
            raise

    # Threads take their tasks themselves: one that hands them out would be woken, and wake, for each.
    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint") as pool:
        try:
            for future in [pool.submit(work) for _ in range(threads)]:
                future.result()
        except BaseException:  # of a task, or the caller's interruption
            failed.set()
            raise
