"""Dialogs of connections: accept a host key, enter a passphrase."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.hosts.prompter import HostKeyPrompt, PassphrasePrompt
from midstream.tui.base_app import app_of
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule


def first_contact(contact: HostKeyPrompt) -> ConfirmScreen:
    """Dialog to accept a host key.

    The user types "yes": the dialog opens unexpectedly, and a key pressed for the screen must not accept.
    """
    return ConfirmScreen(
        f"First contact with {contact.host}",
        (
            f"The key of {contact.known_as} is unknown:",
            f"  {contact.kind} {contact.fingerprint}",
            "Compare it with the output of this command on the host:",
            "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            f"Accepting adds it to {contact.file}.",
        ),
        word="yes",
    )


class PassphraseScreen(ModalScreen[str]):
    """Returns the passphrase of a key file; empty to leave it locked."""

    BINDINGS: ClassVar = [("escape", "leave", "Leave it locked")]

    def __init__(self, prompt: PassphrasePrompt) -> None:
        super().__init__()
        self._wanted = prompt

    def compose(self) -> ComposeResult:
        prompt = self._wanted
        with Vertical(id="dialog"):
            yield Rule(f"Passphrase for {prompt.host}", app_of(self).glyphs)
            yield Static(Text(f"{prompt.file} is locked.", palette.TEXT), classes="words")
            if prompt.again:
                yield Static(Text("Wrong passphrase.", palette.BAD))
            yield Static(Text("enter unlocks it for this session; esc leaves it locked", palette.DIM))
            yield Input(id="word", password=True, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss("")
