"""Questions of a connection to its user: in a terminal, in the UI, or unanswered.

Connections are made on many threads. The user gets one question at a time, and none twice.
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

from midstream.hosts.concurrency_limit import CONNECT_LIMIT

T = TypeVar("T")

PASSPHRASE_ATTEMPTS = 3  # as ssh


@dataclass(frozen=True)
class HostKeyPrompt:
    """Question whether to accept a host key that is in no known_hosts file."""

    host: str  # its name in the fleet file, or as a jump
    known_as: str  # its name in known_hosts
    kind: str  # "ssh-ed25519"
    fingerprint: str  # "SHA256:..."
    file: str  # the known_hosts file that the key would be written to


@dataclass(frozen=True)
class PassphrasePrompt:
    """Question for the passphrase of a key file. ``again``: the last answer was wrong."""

    host: str
    file: str
    again: bool = False


class Prompter(Protocol):
    """Interface for answers to questions.

    The methods are called on any thread, one question at a time, and may block without limit.
    """

    def accept(self, prompt: HostKeyPrompt, /) -> bool | None:
        """Return True to accept the host key, False to refuse it, None without an answer."""
        ...

    def passphrase(self, prompt: PassphrasePrompt, /) -> str | None:
        """Return the passphrase, None to leave the key locked."""
        ...


class NoPrompter:
    """Answers nothing, for a program without a terminal: connections fail with a hint."""

    def accept(self, _prompt: HostKeyPrompt, /) -> bool | None:
        return None

    def passphrase(self, _prompt: PassphrasePrompt, /) -> str | None:
        return None


class TerminalPrompter:
    """Prompts on the controlling terminal. stdin and stdout stay free for data."""

    def accept(self, prompt: HostKeyPrompt, /) -> bool | None:
        question = (
            f"midstream: first contact with {prompt.host} ({prompt.known_as}). It shows the key\n"
            f"  {prompt.kind} {prompt.fingerprint}\n"
            f"Is it that host's key? 'yes' writes it to {prompt.file}: "
        )
        while (answer := self._read(question)) is not None:
            if answer in ("yes", "no") or answer == prompt.fingerprint:
                return answer != "no"
            question = "Please type yes, no, or the fingerprint: "
        return None

    def passphrase(self, prompt: PassphrasePrompt, /) -> str | None:
        words = "it does not open the key; try again" if prompt.again else f"for {prompt.host}; empty leaves it locked"
        return self._read(f"midstream: passphrase of {prompt.file} ({words}): ", echo=False) or None

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
    """Context with or without echo. An interrupted program restores the terminal too."""
    if echo:
        yield
        return
    before = termios.tcgetattr(terminal)
    without_echo = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]

    def restore() -> None:
        with contextlib.suppress(termios.error, OSError), open("/dev/tty", "rb", buffering=0) as tty:
            termios.tcsetattr(tty.fileno(), termios.TCSAFLUSH, before)

    atexit.register(restore)
    termios.tcsetattr(terminal, termios.TCSAFLUSH, without_echo)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        atexit.unregister(restore)


class _PromptQueue:
    """Prompts one question at a time, and stores the answers."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._prompter: Prompter | None = None
        self._waiting = 0
        self.questions = 0  # that were shown to a user so far
        self._answers: dict[HostKeyPrompt, bool] = {}
        self._locked: set[str] = set()

    @contextlib.contextmanager
    def use(self, prompter: Prompter) -> Iterator[None]:
        """Context in which ``prompter`` answers."""
        before, self._prompter = self._prompter, prompter
        try:
            yield
        finally:
            self._prompter = before

    def prompter(self) -> Prompter:
        """Return the current prompter: by default the terminal, if there is one."""
        if self._prompter is not None:
            return self._prompter
        return TerminalPrompter() if sys.stdin.isatty() and sys.stderr.isatty() else NoPrompter()

    @property
    def busy(self) -> bool:
        """True while a user has a question to answer. Timeouts do not count that time."""
        return self._waiting > 0 and not isinstance(self.prompter(), NoPrompter)

    def _counted_prompter(self) -> Prompter:
        prompter = self.prompter()
        if not isinstance(prompter, NoPrompter):
            self.questions += 1
        return prompter

    def accepts(self, prompt: HostKeyPrompt) -> bool | None:
        """Return the answer about a host key, None without one.

        The user is prompted once for each.
        """
        return self._in_turn(lambda: self._accepts(prompt))

    def _accepts(self, prompt: HostKeyPrompt) -> bool | None:
        if prompt not in self._answers:
            answer = self._counted_prompter().accept(prompt)
            if answer is None:
                return None
            self._answers[prompt] = answer
        return self._answers[prompt]

    def unlock(self, host: str, file: str, open_key: Callable[[str], T | None]) -> T | None:
        """Return what ``open_key`` returns for the passphrase of ``file``.

        None without a passphrase that opens the file.
        """
        return self._in_turn(lambda: self._unlock(host, file, open_key))

    def _unlock(self, host: str, file: str, open_key: Callable[[str], T | None]) -> T | None:
        if file in self._locked:
            return None
        for attempt in range(PASSPHRASE_ATTEMPTS):
            answer = self._counted_prompter().passphrase(PassphrasePrompt(host, file, attempt > 0))
            if answer is None:
                if not isinstance(self.prompter(), NoPrompter):
                    self._locked.add(file)
                return None
            if (key := open_key(answer)) is not None:
                return key
        self._locked.add(file)
        return None

    def _in_turn(self, ask: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            with CONNECT_LIMIT.released(), self._turn:
                return ask()
        finally:
            self._waiting -= 1

    def reset(self) -> None:
        """Forget the answers, so that a retry prompts again."""
        self._answers.clear()
        self._locked.clear()


PROMPTS = _PromptQueue()
