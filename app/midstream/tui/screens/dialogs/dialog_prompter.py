"""Prompter that shows questions of connections as dialogs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from textual.app import App
from textual.screen import ModalScreen

if TYPE_CHECKING:
    from midstream.hosts.prompter import HostKeyPrompt, PassphrasePrompt

T = TypeVar("T")
POLL_INTERVAL = 0.2  # seconds between checks that the application still runs


class DialogPrompter:
    """Shows a dialog and returns its answer. Called on connection threads.

    Waits for the application to start; returns None once it has ended.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._closed = threading.Event()

    def accept(self, contact: HostKeyPrompt) -> bool | None:
        from midstream.tui.screens.dialogs.prompts import first_contact

        return self._ask(lambda: first_contact(contact))

    def passphrase(self, prompt: PassphrasePrompt) -> str | None:
        from midstream.tui.screens.dialogs.prompts import PassphraseScreen

        return self._ask(lambda: PassphraseScreen(prompt))

    def close(self) -> None:
        """Answer every open and later question with None."""
        self._closed.set()

    def _ask(self, make: Callable[[], ModalScreen[T]]) -> T | None:
        while not self._app.is_running:
            if self._closed.wait(POLL_INTERVAL):
                return None
        answered = threading.Event()
        answers: list[T | None] = []

        def take(answer: T | None) -> None:
            answers.append(answer)
            answered.set()

        self._app.call_later(lambda: self._app.push_screen(make(), take))
        while not answered.wait(POLL_INTERVAL):
            if self._closed.is_set():
                return None
        return answers[0]
