"""Somebody who answers what reaching a host asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream.hosts.prompter import FirstContact, Passphrase


@dataclass
class Answers:
    """Gives the answers that it was given, and remembers the questions."""

    accepts: bool | None = None
    passphrases: list[str] = field(default_factory=list)
    asked: list[Passphrase] = field(default_factory=list)
    contacts: list[FirstContact] = field(default_factory=list)

    def accept(self, contact: FirstContact) -> bool | None:
        self.contacts.append(contact)
        return self.accepts

    def passphrase(self, wanted: Passphrase) -> str | None:
        self.asked.append(wanted)
        return self.passphrases.pop(0) if self.passphrases else None
