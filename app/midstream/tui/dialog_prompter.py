"""The person at the screen, as those know them who reach hosts: questions become dialogs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from textual.app import App
from textual.screen import ModalScreen

from midstream.hosts.prompter import FirstContact, Passphrase
from midstream.tui.screens.dialogs.prompts import PassphraseScreen, first_contact

T = TypeVar("T")
LOOK = 0.2  # seconds between two looks at whether the screen is still there


class DialogPrompter:
    """Asks on the app's screen. Called on the threads that reach hosts; waits for the app to begin, and gives up once
    it has ended."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._gone = threading.Event()

    def accept(self, contact: FirstContact) -> bool | None:
        return self._ask(lambda: first_contact(contact))

    def passphrase(self, wanted: Passphrase) -> str | None:
        return self._ask(lambda: PassphraseScreen(wanted))

    def leave(self) -> None:
        """Nobody is there any more."""
        self._gone.set()

    def _ask(self, make: Callable[[], ModalScreen[T]]) -> T | None:
        while not self._app.is_running:
            if self._gone.wait(LOOK):
                return None
        answered = threading.Event()
        answers: list[T | None] = []

        def take(answer: T | None) -> None:
            answers.append(answer)
            answered.set()

        self._app.call_later(lambda: self._app.push_screen(make(), take))
        while not answered.wait(LOOK):
            if self._gone.is_set():
                return None
        return answers[0]
