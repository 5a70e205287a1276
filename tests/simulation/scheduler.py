"""Tasks of a simulation, and the clock of its virtual time.

A task is a thread of execution that runs until it waits; which of the ready tasks runs next is drawn from the
simulation's seed, so that a seed determines everything. When all tasks wait, the clock jumps to the earliest deadline.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from typing import Protocol

from greenlet import getcurrent, greenlet

BEGIN = 1_700_000_000.0  # UTC seconds at which each simulation begins
REAL_CLOCK = time.perf_counter
LONGEST = 1.5 * 86400.0  # virtual seconds after which a simulation that is not at its end counts as a wait without one


class EndlessWaitError(AssertionError):
    """Every task waits for another one, or the simulation takes longer than `LONGEST`."""


class Owner(Protocol):
    """Process that a task belongs to; its clock and environment hold while the task runs.

    ``held``: its tasks that became ready while it is frozen; None: it is not.
    """

    held: list[Task] | None

    def enter(self) -> None:
        """Make this process's environment the present one."""
        ...

    def worked(self) -> None:
        """Note that a task of this process runs."""
        ...


class Task:
    """A thread of execution. ``owner`` is its process; None: the simulation itself."""

    def __init__(self, run: Callable[[], object], owner: Owner | None, name: str) -> None:
        self.owner, self.name = owner, name
        self.ended = False
        self.abandoned = False  # its process was killed: it never runs again
        self.background = False  # what it does is seen by tasks that are not in the background alone
        self.parked = 0  # number of the present wait; a deadline of an earlier wait does not count
        self.waiting = False
        self.timed_out = False
        self.thread: object = None
        self._run = run
        self.greenlet = greenlet(self._main, parent=SCHEDULER.greenlet)

    def _main(self) -> None:
        try:
            self._run()
        finally:
            self.ended = True


class Scheduler:
    """The ready tasks, the deadlines, and the virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the beginning
        self.random = random.Random(0)  # draws which task runs next
        self.names = random.Random(0)  # draws what programs draw: ids and tokens
        self.seeds = random.Random(0)  # draws the seeds of programs' generators
        self.greenlet = getcurrent()
        self.current: Task | None = None
        self._ready: list[Task] = []
        self._deadlines: list[tuple[float, int, Task, int]] = []
        self._numbers = itertools.count()
        self._entered: Owner | None = None
        self.outside = 0  # times that the simulation itself has acted
        self.watched_always = False
        self._watched = False  # the condition of `run` looks at what tasks in the background do
        self.leave: Callable[[], None] = lambda: None  # restores the simulation's own environment

    def reset(self, seed: int) -> None:
        """Forget all tasks, and begin again with another seed."""
        self.now, self.current, self._entered = 0.0, None, None
        self.random, self.names = random.Random(f"tasks {seed}"), random.Random(f"names {seed}")
        self.seeds = random.Random(f"seeds {seed}")
        random.seed(f"programs {seed}")
        self._ready, self._deadlines = [], []

    def start(self, run: Callable[[], object], owner: Owner | None, name: str) -> Task:
        """Make a task ready to run."""
        task = Task(run, owner, name)
        self._ready.append(task)
        return task

    def run(self, until: Callable[[], bool], *, watched: bool = False) -> None:
        """Run tasks until the condition holds. ``watched``: it looks at what tasks in the background do.

        Raises EndlessWaitError where it never will, and what a task of the simulation itself has raised.
        """
        self._watched = watched or self.watched_always
        self.outside += 1
        try:
            while not until():
                if not self._ready:
                    self._advance()
                    continue
                index = self.random.randrange(len(self._ready)) if len(self._ready) > 1 else 0
                task = self._ready.pop(index)
                if task.owner is not None and task.owner.held is not None:
                    task.owner.held.append(task)
                elif not task.abandoned:
                    self._switch(task)
        finally:
            self._entered = None
            self.leave()

    def _switch(self, task: Task) -> None:
        self.current = task
        if task.owner is None:
            self.outside += 1
        else:
            task.owner.worked()
        if task.owner is not None and task.owner is not self._entered:
            task.owner.enter()
            self._entered = task.owner
        try:
            task.greenlet.switch()
        finally:
            self.current = None

    def _advance(self) -> None:
        while self._deadlines:
            at, _, task, parked = heapq.heappop(self._deadlines)
            if task.waiting and task.parked == parked and not task.abandoned:
                if at > LONGEST:
                    raise EndlessWaitError(f"{task.name} still waits after {at / 86400:.1f} days")
                self.now = max(self.now, at)
                task.waiting, task.timed_out = False, True
                self._ready.append(task)
                return
        raise EndlessWaitError("every task waits for another one")

    def unseen_until(self) -> float:
        """Return when the next task runs that is not in the background; now, where one may run or look at once."""
        if self._watched or self._ready:
            return self.now
        others = (
            at
            for at, _, task, parked in self._deadlines
            if not task.background and task.waiting and task.parked == parked and not task.abandoned
        )
        return min(others, default=self.now)

    def park(self, seconds: float | None) -> bool:
        """Wait until `wake`, at most ``seconds``. Return whether it was woken."""
        return self.park_until(None if seconds is None else self.now + max(0.0, seconds))

    def park_until(self, at: float | None) -> bool:
        """Wait until `wake`, at most until a time. Return whether it was woken."""
        task = self.current
        if task is None:
            raise AssertionError("the simulation itself cannot wait")
        task.parked += 1
        task.waiting, task.timed_out = True, False
        if at is not None:
            heapq.heappush(self._deadlines, (at, next(self._numbers), task, task.parked))
        self.greenlet.switch()
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Make a waiting task ready."""
        if task.waiting and not task.abandoned:
            task.waiting = False
            self._ready.append(task)

    def resume(self, held: list[Task]) -> None:
        """Make the tasks of a process ready that was frozen."""
        self._ready += held

    def give_way(self) -> None:
        """Let other ready tasks run first, if the draw says so."""
        task = self.current
        if task is not None and self._ready:
            self._ready.append(task)
            self.greenlet.switch()

    def vanish(self) -> None:
        """End the present task without unwinding it, as SIGKILL does."""
        assert self.current is not None
        self.current.abandoned = True
        self.greenlet.switch()


SCHEDULER = Scheduler()
