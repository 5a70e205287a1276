"""Threads, locks and clocks of a simulation: one thing runs at a time, and time is virtual.

`install` replaces the standard library's ``threading``, ``time`` and executors in this process. Each thread is then a
greenlet, called a *task* here (`scheduler`).
"""

from __future__ import annotations

import concurrent.futures
import itertools
import queue
import random
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol

from greenlet import getcurrent

from simulation.scheduler import BEGIN, SCHEDULER, Task

QUANTUM = 0.5  # seconds that a short sleep or wait takes at least: polls of a file need no better clock


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            SCHEDULER.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return self.wait_until(None)
        if not timeout and not self._set:
            SCHEDULER.give_way()
            return self._set
        return self.wait_until(SCHEDULER.now + (max(timeout, QUANTUM) if timeout > 0 else timeout))

    def wait_until(self, end: float | None) -> bool:
        """Wait until a virtual time."""
        while not self._set:
            left = None if end is None else end - SCHEDULER.now
            if left is not None and left <= 0:
                return False
            task = SCHEDULER.current
            assert task is not None
            self._waiting.append(task)
            SCHEDULER.park_until(None if left is None else SCHEDULER.now + left)
            if task in self._waiting:
                self._waiting.remove(task)
        return True


class Lock:
    """``threading.Lock`` and ``threading.RLock``."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me: object = SCHEDULER.current or SCHEDULER
        if self._depth and self._owner is me and self.reentrant:
            self._depth += 1
            return True
        end = SCHEDULER.now + timeout if timeout >= 0 else None
        while self._depth:
            keeper = self._owner
            if isinstance(keeper, Task) and (keeper.abandoned or keeper.ended) and self.reentrant:
                break
            left = None if end is None else end - SCHEDULER.now
            if not blocking or (left is not None and left <= 0):
                return False
            task = SCHEDULER.current
            assert task is not None, "the simulation itself cannot wait for a lock"
            self._waiting.append(task)
            SCHEDULER.park(left)
            if task in self._waiting:
                self._waiting.remove(task)
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                SCHEDULER.wake(self._waiting.pop(0))

    def locked(self) -> bool:
        return bool(self._depth)

    def _is_owned(self) -> bool:
        return bool(self._depth) and self._owner is (SCHEDULER.current or SCHEDULER)

    def _at_fork_reinit(self) -> None:
        self._owner, self._depth = None, 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class RLock(Lock):
    """``threading.RLock``."""

    reentrant = True


class Condition:
    """``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        task = SCHEDULER.current
        assert task is not None
        depth, self._lock._depth = self._lock._depth, 1
        self._waiting.append(task)
        self._lock.release()
        woken = SCHEDULER.park(timeout if timeout is None else max(timeout, QUANTUM))
        if task in self._waiting:
            self._waiting.remove(task)
        self._lock.acquire()
        self._lock._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else SCHEDULER.now + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - SCHEDULER.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            SCHEDULER.wake(self._waiting.pop(0))

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Thread:
    """``threading.Thread``: a task of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self.name, self.daemon = name or "thread", bool(daemon)
        self.ident: int | None = None
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self._done = Event()
        self._started = False

    def start(self) -> None:
        self._started = True
        owner = SCHEDULER.current.owner if SCHEDULER.current is not None else None
        adopt = getattr(owner, "start_task", None)
        task = adopt(self._work, self.name) if adopt is not None else SCHEDULER.start(self._work, owner, self.name)
        task.thread = self
        self.ident = id(task)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _work(self) -> None:
        try:
            self.run()
        finally:
            self._done.set()

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(timeout)

    def is_alive(self) -> bool:
        return self._started and not self._done.is_set()


class Executor(concurrent.futures.Executor):
    """``ThreadPoolExecutor``: each call is a task."""

    def __init__(self, max_workers: int | None = None, *_: Any, **__: Any) -> None:
        del max_workers
        self._futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  the future has it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._futures.append(future)
        Thread(target=work, name=getattr(fn, "__name__", "call"), daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        if wait:
            for future in self._futures:
                future.exception()


class Random(random.Random):
    """``random.Random``; without a seed it has one of the simulation's seed."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(SCHEDULER.seeds.random() if seed is None else seed)


def _current_thread() -> Any:
    task = SCHEDULER.current
    return task.thread if task is not None and task.thread is not None else _MAIN


_MAIN = Thread(name="main")


class Clock(Protocol):
    """Clock of the machine on which a task runs."""

    def wall(self) -> float:
        """Return UTC seconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds since the machine's boot."""
        ...


def _clock() -> Clock | None:
    owner = SCHEDULER.current.owner if SCHEDULER.current is not None else None
    return getattr(owner, "clock", None)


def _wall() -> float:
    clock = _clock()
    return BEGIN + SCHEDULER.now if clock is None else clock.wall()


def _monotonic() -> float:
    clock = _clock()
    return SCHEDULER.now if clock is None else clock.monotonic()


def _sleep(seconds: float) -> None:
    SCHEDULER.park(max(seconds, QUANTUM) if seconds else 0.0)


def install() -> None:
    """Replace threads, locks, executors and clocks. Call it before anything of midstream is imported."""
    SCHEDULER.greenlet = getcurrent()
    for name in ("Event", "Lock", "RLock", "Condition", "Thread"):
        setattr(threading, name, globals()[name])
    threading.current_thread = _current_thread  # type: ignore[assignment]
    concurrent.futures.ThreadPoolExecutor = Executor  # type: ignore[assignment, misc]
    time.sleep, time.time, time.monotonic = _sleep, _wall, _monotonic  # type: ignore[assignment]
    time.perf_counter = _monotonic  # type: ignore[assignment]
    time.monotonic_ns = lambda: int(_monotonic() * 1e9) * 1000 + next(_NANOSECONDS) % 1000
    time.time_ns = lambda: int(_wall() * 1e9)
    queue.time = _monotonic  # type: ignore[attr-defined]
    gmtime, localtime, strftime = time.gmtime, time.localtime, time.strftime
    time.gmtime = lambda seconds=None: gmtime(_wall() if seconds is None else seconds)
    time.localtime = lambda seconds=None: localtime(_wall() if seconds is None else seconds)
    time.strftime = lambda form, at=None: strftime(form, localtime(_wall()) if at is None else at)
    random.Random = Random  # type: ignore[misc]
    secrets.token_bytes = lambda count=32: SCHEDULER.names.randbytes(count or 32)
    secrets.token_hex = lambda count=32: SCHEDULER.names.randbytes(count or 32).hex()
    tempfile._name_sequence = (f"{SCHEDULER.names.getrandbits(40):010x}" for _ in itertools.count())  # type: ignore[attr-defined]


_NANOSECONDS = itertools.count()  # two names that were made at one moment of virtual time differ
