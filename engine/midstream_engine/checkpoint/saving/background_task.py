"""One task at a time on a thread of its own, whose result must be collected."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Label = TypeVar("Label")


class BackgroundTask(Generic[Label]):
    """At most one running task, with a label. For use from one thread."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future: Future[None] | None = None
        self._label: Label | None = None

    @property
    def label(self) -> Label | None:
        """Label of the task that has not been collected yet, None if there is none."""
        return self._label

    @property
    def done(self) -> bool:
        """Whether no task is running."""
        return self._future is None or self._future.done()

    @property
    def error(self) -> BaseException | None:
        """Exception that an ended task raised, if any, until the task is collected."""
        return self._future.exception() if self._future is not None and self._future.done() else None

    def start(self, label: Label, work: Callable[[], None]) -> None:
        """Start ``work`` on the thread.

        Raises:
            RuntimeError: An earlier task has not been collected.
        """
        if self._future is not None:
            raise RuntimeError(f"{self._label} has not been collected yet")
        self._label, self._future = label, self._pool.submit(work)

    def wait(self) -> None:
        """Wait until no task is running. Its outcome remains to be collected."""
        if self._future is not None:
            self._future.exception()

    def collect(self) -> tuple[Label, BaseException | None] | None:
        """Wait for the task; return its label and its exception, if any.

        None if there is no task.
        """
        if self._future is None or self._label is None:
            return None
        label, error = self._label, self._future.exception()
        self._label = self._future = None
        return label, error

    def close(self) -> None:
        """End the thread after its task."""
        self._pool.shutdown()
