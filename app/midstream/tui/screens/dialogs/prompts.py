"""What reaching a host may ask: whether a key is the host's, and what opens a key of ours."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.hosts.prompter import FirstContact, Passphrase
from midstream.tui import palette
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Rule


def first_contact(contact: FirstContact) -> ConfirmScreen:
    """True once the person has typed it out: a dialog that comes by itself must not be answered by a key that was
    meant for something else."""
    return ConfirmScreen(
        f"First contact with {contact.host}",
        (
            f"{contact.known_as} shows a key that is not known:",
            f"  {contact.kind} {contact.fingerprint}",
            "Compare it with the host's own, which this prints there:",
            "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            f"Once accepted it is written to {contact.file}.",
        ),
        word="yes",
    )


class PassphraseScreen(ModalScreen[str]):
    """The passphrase of a key file; empty where it is to stay locked."""

    BINDINGS: ClassVar = [("escape", "leave", "Leave it locked")]

    def __init__(self, wanted: Passphrase) -> None:
        super().__init__()
        self._wanted = wanted

    def compose(self) -> ComposeResult:
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        wanted = self._wanted
        with Vertical(id="dialog"):
            yield Rule(f"Passphrase for {wanted.host}", self.app.glyphs)
            yield Static(Text(f"{wanted.file} is locked.", palette.TEXT), classes="words")
            if wanted.again:
                yield Static(Text("That does not open it.", palette.BAD))
            yield Static(Text("enter opens it for this session; esc leaves it locked", palette.DIM))
            yield Input(id="word", password=True, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss("")
