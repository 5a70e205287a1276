"""Parser of flags: modes, flags that go with them, and one-line errors.

The errors have the nearest known word.

An ``argparse.ArgumentParser`` whose sections are tasks. Each flag has a `Note`, from which the rules about
combinations, the help, the man page, the reference page and shell completion are made. --help loads this module: it
imports neither `dataclasses` nor `difflib`, which take half as long as the rest.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from midstream.errors import Exit
from midstream.suggestions import did_you_mean

SCREEN = "the terminal UI"  # what runs without a mode
HELP_HINT = "midstream --help lists the flags"
_LISTED_MODES = 3  # in --help; the reference lists all modes of a flag


class Note(NamedTuple):
    """A flag's properties besides argparse's action.

    Attributes:
        section: Title of its section.
        is_mode: The flag selects what the command does; at most one is given.
        of: Modes that it goes with, or `SCREEN`; empty: all.
        of_text: The same in words, where its modes alone say too little.
        needs: Flags that must be given with this mode.
        engine: Flags of the engine may follow ``--`` with this mode.
        default: Default in words, where it is not the action's.
        completes: What shell completion offers for the value: a name in `midstream.completion_scripts`.
    """

    section: str
    is_mode: bool = False
    of: tuple[str, ...] = ()
    of_text: str = ""
    needs: tuple[str, ...] = ()
    engine: bool = False
    default: str = ""
    completes: str = ""


class _Formatter(argparse.HelpFormatter):
    """Help with a column of 27 characters for flags, and paragraphs as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=27)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
        return "".join(f"{indent}{line}\n" for line in text.splitlines())


class Section:
    """A section of the help: the modes and flags of one task."""

    def __init__(self, parser: FlagParser, title: str) -> None:
        self._parser = parser
        self._title = title
        self._group = parser.add_argument_group(title)

    def mode(
        self, name: str, *, needs: tuple[str, ...] = (), of: tuple[str, ...] = (), engine: bool = False,
        completes: str = "", **settings: object,
    ) -> None:  # fmt: skip
        """Add a mode.

        Args:
            name: The flag that selects the mode.
            needs: Flags that must be given with it.
            of: Other modes that it may be given with.
            engine: Whether flags of the engine may follow ``--``.
            completes: What shell completion offers for the value: a name in `midstream.completion_scripts`.
            settings: Arguments of argparse's ``add_argument``.
        """
        self._add(name, Note(self._title, True, of, "", needs, engine, "", completes), settings)

    def flag(
        self, name: str, *more: str, of: tuple[str, ...] = (), of_text: str = "", default_text: str = "",
        completes: str = "", **settings: object,
    ) -> None:  # fmt: skip
        """Add a flag that goes with the modes ``of``; without them, with all.

        Args:
            name: The flag.
            more: Its further names.
            of: Modes that it goes with; empty: all.
            of_text: The same in words, where its modes alone say too little.
            default_text: Default in words, where it is not the action's.
            completes: What shell completion offers for the value: a name in `midstream.completion_scripts`.
            settings: Arguments of argparse's ``add_argument``.
        """
        note = Note(self._title, of=of, of_text=of_text, default=default_text, completes=completes)
        self._add(name, note, settings, more)

    def _add(self, name: str, note: Note, settings: dict[str, Any], more: Sequence[str] = ()) -> None:
        takes_one = "action" not in settings and "nargs" not in settings and "choices" not in settings
        if takes_one:
            settings.setdefault("type", word)
        if "choices" in settings:
            settings["type"] = one_of(*settings["choices"])
            settings.setdefault("metavar", "|".join(settings["choices"]))
        plain = settings["help"]
        action = self._group.add_argument(name, *more, **settings)
        self._parser.actions[name] = action
        self._parser.notes[name] = note
        self._parser.texts[name] = plain
        action.help = _escaped(plain + self._parser.remark(name))


class FlagParser(argparse.ArgumentParser):
    """A parser with a note for each flag."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=_Formatter, **settings)
        self.actions: dict[str, argparse.Action] = {}  # by flag, in the order of the help
        self.notes: dict[str, Note] = {}
        self.texts: dict[str, str] = {}  # flag -> what it does, without the remark about modes and default

    def section(self, title: str) -> Section:
        """Add a section to the help."""
        return Section(self, title)

    @property
    def modes(self) -> tuple[str, ...]:
        """All modes, in the order of the help."""
        return tuple(name for name, note in self.notes.items() if note.is_mode)

    def default_of(self, name: str) -> str:
        """Return a flag's default as text; empty: it has none."""
        value = self.actions[name].default
        if self.notes[name].default or value is None or isinstance(value, bool) or value == argparse.SUPPRESS:
            return self.notes[name].default
        return str(value)

    def remark(self, name: str) -> str:
        """Return what --help adds to a flag's text: its modes and its default.

        The modes are those that the flag goes with.
        """
        note = self.notes[name]
        listed = 0 < len(note.of) <= _LISTED_MODES and SCREEN not in note.of and not note.is_mode
        words = [f"with {note.of_text or ', '.join(note.of)}"] if listed else []
        if default := self.default_of(name):
            words.append(f"default: {default}")
        return f" ({'; '.join(words)})" if words else ""

    def shown(self, name: str) -> str:
        """Return a flag with its value: ``--to TARGET``, ``--clean [RUN]``.

        `SCREEN` is returned as it is.
        """
        if name not in self.actions or self.actions[name].nargs == 0:
            return name
        values = " ".join(_values(self.actions[name]))
        return f"{name} [{values}]" if self.actions[name].nargs == "?" else f"{name} {values}"

    def is_given(self, options: argparse.Namespace, name: str) -> bool:
        """Return True if a flag has another value than its default."""
        action = self.actions[name]
        return action.dest in options and getattr(options, action.dest) != action.default

    def chosen(self, options: argparse.Namespace) -> list[str]:
        """Return the given modes, without those that are flags of another one here."""
        given = [name for name in self.modes if self.is_given(options, name)]
        return [name for name in given if not set(self.notes[name].of) & set(given)]

    def parse_words(self, words: Sequence[str], engine: Sequence[str] = ()) -> argparse.Namespace:
        """Parse the words of a command line; ``engine`` are those after ``--``.

        Raises:
            SystemExit: A word is unknown, or flags do not go together.
        """
        options, unknown = self.parse_known_args(list(words))
        if unknown:
            self._refuse_word(unknown[0])
        for message in self._conflicts(options, engine):
            self.error(message)
        return options

    def _refuse_word(self, text: str) -> NoReturn:
        flag = text.split("=")[0]
        if not flag.startswith("-"):
            hint = f"did you mean --{flag}?" if f"--{flag}" in self.actions else HELP_HINT
            self.error(f"{text!r} belongs to no flag ({hint})")
        if "." in flag:
            example = f"midstream --launch CONFIG --on TARGET -- {flag} VALUE"
            self.error(f"unknown flag {flag} (flags of the engine follow --: {example})")
        hint = did_you_mean(flag.replace("_", "-"), self.actions) or HELP_HINT
        self.error(f"unknown flag {flag} ({hint})")

    def _conflicts(self, options: argparse.Namespace, engine: Sequence[str]) -> Iterator[str]:
        """Yield a message for each rule about combinations that the flags break."""
        chosen = self.chosen(options)
        if len(chosen) > 1:
            yield f"{chosen[1]} is not allowed with {chosen[0]}: each does one thing"
        mode = chosen[0] if chosen else SCREEN
        for name, note in self.notes.items():
            if self.is_given(options, name) and note.of and mode not in note.of and not note.is_mode:
                yield f"{name} goes with {note.of_text or _listed(list(map(self.shown, note.of)))}"
        for needed in self.notes[mode].needs if chosen else ():
            if not self.is_given(options, needed):
                yield f"{mode} needs {self.shown(needed)}"
        if engine and not (chosen and self.notes[mode].engine):
            modes = [self.shown(name) for name in self.modes if self.notes[name].engine]
            yield f"flags after -- are the engine's: they go with {_listed(modes)}"

    def error(self, message: str) -> NoReturn:
        """Print an error as one line and exit with the code for usage."""
        message = re.sub(r"^argument (\S+): ", r"\1: ", message)
        if matched := re.fullmatch(r"(--[a-z-]+): expected (?:one argument|\d+ arguments)", message):
            message = f"{matched[1]} needs {' '.join(_values(self.actions[matched[1]]))}"
        hint = "" if message.endswith(")") else f" ({HELP_HINT})"
        sys.stderr.write(f"midstream: {message}{hint}\n")
        raise SystemExit(int(Exit.USAGE))


class PrintAndExit(argparse.Action):
    """A flag that prints a text and ends the program. ``text`` gets the flag's value."""

    def __init__(self, text: Callable[[object], str], **settings: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **settings)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> None:
        """Print the text; ``given`` is namespace, value and flag."""
        sys.stdout.write(self._text(given[1]))
        sys.stdout.flush()  # while an error can be reported; argparse's own --help ignores it
        parser.exit()


def word(text: str) -> str:
    """Check a value: it is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("its value is empty")
    return text


def one_of(*names: str) -> Callable[[str], str]:
    """Return the check of a value that is one of these names."""

    def check(text: str) -> str:
        if text not in names:
            hint = did_you_mean(text, names)
            what = f"is none of {_listed(names)}" if len(names) > 1 else f"is not {''.join(names)}"
            raise argparse.ArgumentTypeError(f"{text!r} {what}" + (f" ({hint})" if hint else ""))
        return text

    return check


def number(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _values(action: argparse.Action) -> tuple[str, ...]:
    shown = action.metavar or action.dest.upper()
    return (shown,) if isinstance(shown, str) else shown


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
