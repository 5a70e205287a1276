"""One piece of work at a time on a thread of its own, whose end is never lost: it is collected, or waited for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Label = TypeVar("Label")


class Background(Generic[Label]):
    """Work in flight, at most one, with a label that says which. To be used from one thread."""

    def __init__(self, name: str):
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future: Future[None] | None = None
        self._label: Label | None = None

    @property
    def label(self) -> Label | None:
        """Of the work that has not been collected yet; None where there is none."""
        return self._label

    @property
    def done(self) -> bool:
        """Whether there is nothing in flight, or it has ended."""
        return self._future is None or self._future.done()

    @property
    def error(self) -> BaseException | None:
        """What ended the work that has ended and has not been collected yet, if anything."""
        return self._future.exception() if self._future is not None and self._future.done() else None

    def start(self, label: Label, work: Callable[[], None]) -> None:
        """Run ``work`` behind the caller. RuntimeError where an earlier one was not collected."""
        if self._future is not None:
            raise RuntimeError(f"{self._label} has not been collected yet")
        self._label, self._future = label, self._pool.submit(work)

    def collect(self) -> tuple[Label, BaseException | None] | None:
        """Wait for the work in flight; its label and the exception that ended it, if any. None where there is none."""
        if self._future is None or self._label is None:
            return None
        label, error = self._label, self._future.exception()
        self._label = self._future = None
        return label, error

    def close(self) -> None:
        """End the thread, after the work that it may be at."""
        self._pool.shutdown()
