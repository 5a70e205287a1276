"""Work that blocks, beside the screens.

Textual's thread workers run in asyncio's executor, whose threads the interpreter waits for at its end: one host that
does not answer would hold up ``q`` for as long as it is silent. These threads are daemons."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from textual.app import App


class Background:
    """Work under way beside one app."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether all work is done."""
        with self._lock:
            return self._under_way == 0

    def run(self, work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        """Begin ``work`` on a thread of its own; it talks to screens by ``post_message``. What it raises is given to
        ``failed`` on the screens' thread."""
        with self._lock:
            self._under_way += 1
        context = contextvars.copy_context()  # in which Textual knows the app
        threading.Thread(target=context.run, args=(self._carry_out, work, failed), daemon=True).start()

    def _carry_out(self, work: Callable[[], object], failed: Callable[[Exception], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (whatever it is, the screen says so)
            with contextlib.suppress(RuntimeError):  # the screens' loop has ended: nobody is left to be told
                self._app.call_later(failed, error)
        finally:
            with self._lock:
                self._under_way -= 1
