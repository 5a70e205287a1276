"""Background threads for blocking work of the screens.

Textual's thread workers run in asyncio's executor, whose threads the interpreter joins at exit: one host that does not
answer would delay ``q`` until its timeout. These threads are daemons.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from textual.app import App


class Background:
    """Background work of one application."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._running = 0

    @property
    def idle(self) -> bool:
        """True when no work is running."""
        with self._lock:
            return self._running == 0

    def run(self, work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Run ``work`` in a thread of its own, which reaches screens by ``post_message``.

        An exception of ``work`` is passed to ``failed`` in the application's thread.
        """
        with self._lock:
            self._running += 1
        context = contextvars.copy_context()  # Textual's active app is a context variable
        threading.Thread(target=context.run, args=(self._work, work, failed), daemon=True).start()

    def _work(self, work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (any error is shown on the screen)
            with contextlib.suppress(RuntimeError):  # the event loop has ended: no screen is left to show it
                self._app.call_later(failed, error)
        finally:
            with self._lock:
                self._running -= 1
