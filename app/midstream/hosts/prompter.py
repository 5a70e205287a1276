"""Questions that reaching a host may raise, and who answers them: a terminal, the terminal UI, or nobody.

Connections are made on many threads; a person is asked one thing at a time, and never the same thing twice.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from midstream.hosts.concurrency_limit import REACHING

T = TypeVar("T")


@dataclass(frozen=True)
class FirstContact:
    """A host shows a key that is in no known_hosts file."""

    host: str  # its name in the fleet file, or as a jump
    known_as: str  # its name in known_hosts
    kind: str  # "ssh-ed25519"
    fingerprint: str  # "SHA256:..."
    file: str  # the known_hosts file that the key would be written to


@dataclass(frozen=True)
class Passphrase:
    """A key file that is needed is encrypted. ``again``: the last answer did not open it."""

    host: str
    file: str
    again: bool = False


class Prompter(Protocol):
    """Somebody who can be asked. Called on any thread, one question at a time; may block for as long as it takes."""

    def accept(self, contact: FirstContact) -> bool | None:
        """Whether the key is the host's. None where nobody answered."""
        ...

    def passphrase(self, wanted: Passphrase) -> str | None:
        """None where nobody answered, or the key is not to be used."""
        ...


class NoPrompter:
    """A program without a terminal: it refuses, and says how a person would mend it."""

    def accept(self, contact: FirstContact) -> bool | None:
        return None

    def passphrase(self, wanted: Passphrase) -> str | None:
        return None


class TerminalPrompter:
    """The person at the controlling terminal. stdin and stdout stay free for data."""

    def accept(self, contact: FirstContact) -> bool | None:
        question = (
            f"midstream: first contact with {contact.host} ({contact.known_as}). It shows the key\n"
            f"  {contact.kind} {contact.fingerprint}\n"
            f"Is it that host's key? 'yes' writes it to {contact.file}: "
        )
        while (answer := self._read(question)) is not None:
            if answer in ("yes", "no") or answer == contact.fingerprint:
                return answer != "no"
            question = "Please type yes, no, or the fingerprint: "
        return None

    def passphrase(self, wanted: Passphrase) -> str | None:
        words = "that does not open it; once more" if wanted.again else f"for {wanted.host}; empty leaves it locked"
        return self._read(f"midstream: passphrase of {wanted.file} ({words}): ", echo=False) or None

    def _read(self, question: str, *, echo: bool = True) -> str | None:
        try:
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            return None
        with open(terminal, "r+b", buffering=0) as tty, _echo(tty.fileno(), echo):
            tty.write(question.encode())
            line = tty.readline()
            if not echo:
                tty.write(b"\n")
        return line.decode(errors="replace").strip() if line else None


@contextlib.contextmanager
def _echo(terminal: int, echo: bool) -> Iterator[None]:
    """Typing is shown, or not. A program that is interrupted meanwhile leaves the terminal as it was."""
    if echo:
        yield
        return
    before = termios.tcgetattr(terminal)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]

    def restore() -> None:
        with contextlib.suppress(termios.error, OSError), open("/dev/tty", "rb", buffering=0) as tty:
            termios.tcsetattr(tty.fileno(), termios.TCSAFLUSH, before)

    atexit.register(restore)
    termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        atexit.unregister(restore)


class _PromptQueue:
    """Where questions are asked."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._person: Prompter | None = None
        self._waiting = 0
        self.questions = 0  # that a person was asked so far
        self._answers: dict[FirstContact, bool] = {}
        self._locked: set[str] = set()

    @contextlib.contextmanager
    def of(self, person: Prompter) -> Iterator[None]:
        before, self._person = self._person, person
        try:
            yield
        finally:
            self._person = before

    def person(self) -> Prompter:
        if self._person is not None:
            return self._person
        return TerminalPrompter() if sys.stdin.isatty() and sys.stderr.isatty() else NoPrompter()

    @property
    def busy(self) -> bool:
        """Whether a person is being asked: whoever counts the seconds does not count these."""
        return self._waiting > 0 and not isinstance(self.person(), NoPrompter)

    def _asked(self) -> Prompter:
        person = self.person()
        if not isinstance(person, NoPrompter):
            self.questions += 1
        return person

    def accepts(self, contact: FirstContact) -> bool | None:
        """True and False are remembered: who said no is not asked again at the next try."""
        return self._in_turn(lambda: self._accepts(contact))

    def _accepts(self, contact: FirstContact) -> bool | None:
        if contact not in self._answers:
            answer = self._asked().accept(contact)
            if answer is None:
                return None
            self._answers[contact] = answer
        return self._answers[contact]

    def unlock(self, host: str, file: str, opens: Callable[[str], T | None]) -> T | None:
        """What ``opens`` makes of the passphrase of ``file``; None where nobody knows one. Three tries, as ssh has."""
        return self._in_turn(lambda: self._unlock(host, file, opens))

    def _unlock(self, host: str, file: str, opens: Callable[[str], T | None]) -> T | None:
        if file in self._locked:
            return None
        for attempt in range(3):
            answer = self._asked().passphrase(Passphrase(host, file, attempt > 0))
            if answer is None:
                if not isinstance(self.person(), NoPrompter):
                    self._locked.add(file)
                return None
            if (opened := opens(answer)) is not None:
                return opened
        self._locked.add(file)
        return None

    def _in_turn(self, ask: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            with REACHING.aside(), self._turn:
                return ask()
        finally:
            self._waiting -= 1

    def forget(self) -> None:
        """Ask everything anew: a person wants to try again."""
        self._answers.clear()
        self._locked.clear()


PROMPTS = _PromptQueue()
