"""Preflight of a screen: checks that run in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from textual.message import Message

from midstream.check.check_result import FAIL, Check
from midstream.errors import MidstreamError
from midstream.tui.screens.base import MidstreamScreen


class Checked(Message):
    """One check of preflight number ``round`` was done; None: all were."""

    def __init__(self, round: int, check: Check | None) -> None:
        super().__init__()
        self.round, self.check = round, check


class Preflight:
    """Results of the latest preflight, without those of an earlier one.

    The screen receives `Checked` and passes it to `add`.

    Attributes:
        checks: Checks that are done.
        complete: Whether all are.
    """

    def __init__(self, screen: MidstreamScreen) -> None:
        self._screen = screen
        self._round = 0
        self.checks: list[Check] = []
        self.complete = False

    @property
    def failed(self) -> Check | None:
        """The first check that failed."""
        return next((check for check in self.checks if check.state == FAIL), None)

    def start(self, checks: Callable[[], Iterable[Check]]) -> None:
        """Run the checks that ``checks`` yields, in the background."""
        self.cancel()
        self.checks, self.complete = [], False
        self._screen.in_background(partial(self._run, self._round, checks))

    def cancel(self) -> None:
        """End the running preflight after its current check, and drop its results."""
        self._round += 1

    def add(self, result: Checked) -> bool:
        """Add a result. Return False if it is of an earlier preflight."""
        if result.round != self._round:
            return False
        if result.check is None:
            self.complete = True
        else:
            self.checks.append(result.check)
        return True

    def _run(self, round: int, checks: Callable[[], Iterable[Check]]) -> None:
        try:
            for check in checks():
                if self._round != round:
                    return
                self._post(round, check)
        except MidstreamError as error:
            self._post(round, Check("preflight", FAIL, error.message, error.hint))
        except Exception as error:  # without a result the screen would wait for ever
            self._post(round, Check("preflight", FAIL, f"internal error: {type(error).__name__}: {error}"))
            self._post(round, None)
            raise
        self._post(round, None)

    def _post(self, round: int, check: Check | None) -> None:
        self._screen.post_message(Checked(round, check))
