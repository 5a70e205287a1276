"""Commands that documents and hints offer, to be pasted into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from midstream.flags import parser

_BEGIN = re.compile(r"(?<![\w./`-])midstream (?=--|-h)")
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_|@:\[\],.]*")
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


def commands_in_prose(text: str) -> Iterator[list[str]]:
    """Yield the words of each command within a sentence: it ends where its flags take no further value."""
    matches = list(_BEGIN.finditer(text))
    if not matches:  # as in most texts: the parser takes a while to make
        return
    flags = parser()
    for match in matches:
        words: list[str] = []
        values = 0  # that the last flag still takes
        choices: Sequence[str] = ()
        optional = False
        tokens = text[match.end() :].split()
        for index, token in enumerate(tokens):
            word = token.rstrip(",;:.?)`")
            if word in flags.actions:
                action = flags.actions[word]
                values = action.nargs if isinstance(action.nargs, int) else 1
                optional, choices = action.nargs == "?", tuple(map(str, action.choices or ()))
            elif word and values and _is_value(word, tokens[index + 1 :], choices, optional=optional):
                values -= 1
            else:
                break
            words.append(word)
            if word != token:
                break
        yield words


def _is_value(word: str, following: Sequence[str], choices: Sequence[str], *, optional: bool) -> bool:
    """Return whether a word is a value, and no word of the sentence around the command."""
    if _PLACEHOLDER.fullmatch(word):
        return True
    return not optional and (not word.isalpha() or word in choices or not following or following[0].startswith("--"))


def commands_in_block(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block of shell, without what follows it in the line."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if token and set(token) <= set("|;&<>()"):
                if words[:1] == ["midstream"]:
                    yield words[1:]
                words = []
            elif words or not _ASSIGNMENT.fullmatch(token):
                words.append(token)
