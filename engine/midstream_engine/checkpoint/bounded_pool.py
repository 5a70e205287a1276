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
    """Run ``(bytes, function)`` tasks, started in the order given.

    Running tasks have at most ``in_flight`` bytes.

    A task larger than the limit runs alone. After the first exception no further task starts; it is raised when the
    running tasks have ended.
    """
    upcoming = iter(tasks)
    taking = threading.Lock()  # of the thread whose task is the next to start, while it waits for room
    room = threading.Condition()
    used = 0  # bytes of running tasks
    failed = threading.Event()

    def begin() -> Task | None:
        """Return the next task when there is room; None without one or after a failure."""
        nonlocal used
        with taking:
            if failed.is_set() or (task := next(upcoming, None)) is None:
                return None
            with room:
                room.wait_for(lambda: not used or used + task[0] <= in_flight)
                if failed.is_set():
                    return None
                used += task[0]
            return task

    def work() -> None:
        nonlocal used
        try:
            while (task := begin()) is not None:
                size, function = task
                try:
                    function()
                finally:
                    with room:
                        used -= size
                        room.notify_all()
        except BaseException:
            failed.set()
            raise

    # Threads fetch their tasks themselves: a dispatcher would cost two context switches per task.
    with ThreadPoolExecutor(threads, thread_name_prefix="checkpoint") as pool:
        try:
            for future in [pool.submit(work) for _ in range(threads)]:
                future.result()
        except BaseException:  # from a task, or the caller's interruption
            failed.set()
            raise
