"""A stream that is opened while the target is surveyed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from midstream.transfer.stream import Stream

EARLY_STREAMS = 3  # opened while the target is surveyed


class EarlyStream:
    """Stream that is opened while the target is surveyed.

    Logins and interpreters take as long as the survey.
    """

    def __init__(self, begin: Callable[[], Stream | None]) -> None:
        self._begin = begin
        self._opened: Future[Stream | None] = Future()
        self._taken = False
        threading.Thread(target=self._open, name="copy-early", daemon=True).start()

    def _open(self) -> None:
        try:
            self._opened.set_result(self._begin())
        except BaseException as error:  # noqa: BLE001  `take` raises it
            self._opened.set_exception(error)

    def take(self) -> Stream | None:
        """Return the stream, None if it does not pay off. Raises as `Route.open`."""
        self._taken = True
        return self._opened.result()

    def close(self) -> None:
        """Close the stream as soon as it is open, unless it was taken."""
        if self._taken:
            return

        def end(opened: Future[Stream | None]) -> None:
            if opened.exception() is None and (stream := opened.result()) is not None:
                stream.close()

        self._opened.add_done_callback(end)
