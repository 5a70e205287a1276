"""A prompter with prepared answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from midstream.hosts.prompter import HostKeyPrompt, PassphrasePrompt


@dataclass
class Answers:
    """Returns the prepared answers, and records the questions."""

    accepts: bool | None = None
    passphrases: list[str] = field(default_factory=list)
    passphrase_prompts: list[PassphrasePrompt] = field(default_factory=list)
    host_keys: list[HostKeyPrompt] = field(default_factory=list)

    def accept(self, contact: HostKeyPrompt) -> bool | None:
        self.host_keys.append(contact)
        return self.accepts

    def passphrase(self, prompt: PassphrasePrompt) -> str | None:
        self.passphrase_prompts.append(prompt)
        return self.passphrases.pop(0) if self.passphrases else None
