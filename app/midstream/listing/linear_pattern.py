"""Regular expressions whose search time is proportional to the text's length.

Python's ``re`` takes exponential time for some patterns (``(a+)+$``), which would stop the screen while the user types.
This matcher follows all alternatives at once (Thompson's construction) and caches the sets of states that it meets.
Back references and look-around, which need backtracking, are not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

MAX_STATES = 1000  # of a pattern, after the expansion of {m,n}
MAX_NESTING = 30  # groups
MAX_CACHED = 5000  # transitions, and texts
_SPECIAL = "()[]{}*+?|^$.\\"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r"}
_Test = Callable[[str], bool]


class PatternError(ValueError):
    """Error: a pattern is malformed.

    ``position`` is the index of the character that is wrong.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass
class _State:
    """A state: it consumes a character that passes ``test``, or is left without one.

    ``anchor`` is ``^`` or ``$`` where it is left only at the beginning or the end.
    """

    test: _Test | None = None
    anchor: str = ""
    next: list[int] = field(default_factory=list)


class LinearPattern:
    """A pattern that ignores case. ``search`` reports whether it occurs in a text."""

    def __init__(self, pattern: str) -> None:
        """Compile ``pattern``. Raises PatternError."""
        self.pattern = pattern
        self._states = [_State()]  # 0: found
        parser = _PatternParser(pattern, self._states)
        self._start = parser.pattern()
        self._first = self._closure({self._start}, at_start=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._known: dict[str, bool] = {}  # text -> whether the pattern occurs in it; lists repeat their values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinearPattern) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def search(self, text: str) -> bool:
        """Return True if the pattern occurs in ``text``."""
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            known = self._known[text] = self._search(text)
        return known

    def _search(self, text: str) -> bool:
        states = self._first
        for character in text.lower():
            if 0 in states:
                return True
            step = self._steps.get((states, character))
            states = self._step(states, character) if step is None else step
        return 0 in states or 0 in self._closure(set(states), at_start=not text, at_end=True)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        reached = {self._start}  # the pattern may begin at any character
        for number in states:
            state = self._states[number]
            if state.test is not None and state.test(character):
                reached.update(state.next)
        if len(self._steps) >= MAX_CACHED:
            self._steps.clear()
        step = self._steps[states, character] = self._closure(reached)
        return step

    def _closure(self, states: set[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """Return the states that are reached without another character."""
        open_states = list(states)
        while open_states:
            state = self._states[open_states.pop()]
            passable = {"": True, "^": at_start, "$": at_end}[state.anchor]
            if state.test is None and passable:
                new = set(state.next) - states
                states |= new
                open_states += new
        return frozenset(states)


class _PatternParser:
    """A recursive-descent parser.

    Each method returns a function that adds states which lead to a given state.
    """

    def __init__(self, pattern: str, states: list[_State]) -> None:
        self._pattern = pattern
        self._states = states
        self._at = 0
        self._nesting = 0

    def pattern(self) -> int:
        build = self._alternatives()
        if self._at < len(self._pattern):
            raise PatternError("this ) closes nothing", self._at)
        return build(0)

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError("the pattern is too long", 0)
        self._states.append(state)
        return len(self._states) - 1

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> Callable[[int], int]:
        choices = [self._sequence()]
        while self._take("|"):
            choices.append(self._sequence())
        if len(choices) == 1:
            return choices[0]
        return lambda after: self._add(_State(next=[build(after) for build in choices]))

    def _sequence(self) -> Callable[[int], int]:
        items: list[Callable[[int], int]] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated())

        def build(after: int) -> int:
            for item in reversed(items):
                after = item(after)
            return after

        return build

    def _repeated(self) -> Callable[[int], int]:
        begin = self._at
        item = self._atom()
        while self._peek() and self._peek() in "*+?{":
            at = self._at
            least, most = self._counts()
            self._take("?")  # a lazy repetition finds the same texts
            if self._peek() and self._peek() in "*+?{":
                raise PatternError("a repetition cannot be repeated: use ( )", self._at)
            if self._pattern[begin] in "^$" and at == begin + 1:
                raise PatternError("an anchor cannot be repeated", at)
            item = partial(self._repeat, item, least, most)
        return item

    def _counts(self) -> tuple[int, int | None]:
        """Return the least and the largest number of repetitions; None: any number."""
        at = self._at
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        self._at += 1
        end = self._pattern.find("}", self._at)
        first, comma, last = self._pattern[self._at : max(end, self._at)].partition(",")
        if end < 0 or not _is_count(first) or (last and not _is_count(last)):
            raise PatternError(r"write {2}, {2,} or {2,5}, or \{ for the character", at)
        self._at = end + 1
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if most is not None and most < least:
            raise PatternError(f"{most} is less than {least}", at)
        if max(least, most or 0) > MAX_STATES:
            raise PatternError("the pattern is too long", at)
        return least, most

    def _repeat(self, item: Callable[[int], int], least: int, most: int | None, after: int) -> int:
        if most is None:
            loop = self._add(_State())
            self._states[loop].next = [item(loop), after]
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = self._add(_State(next=[item(after), end]))
        for _ in range(least):
            before, after = len(self._states), item(after)
            if len(self._states) == before:  # an empty group
                break
        return after

    def _atom(self) -> Callable[[int], int]:
        at, sign = self._at, self._peek()
        self._at += 1
        if sign == "(":
            return self._group(at)
        if sign == "[":
            return self._consumes(self._set(at))
        if sign == ".":
            return self._consumes(lambda character: character != "\n")
        if sign in "^$":
            return lambda after: self._add(_State(anchor=sign, next=[after]))
        if sign == "\\":
            return self._consumes(self._escape(at))
        if sign in "*+?{":
            raise PatternError(f"{sign} has nothing to repeat", at)
        return self._consumes(_literal(sign))

    def _group(self, at: int) -> Callable[[int], int]:
        if self._peek() == "?" and not self._take("?:"):
            raise PatternError("groups that begin with (? are not supported", at)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise PatternError(f"more than {MAX_NESTING} groups in each other", at)
        inner = self._alternatives()
        self._nesting -= 1
        if not self._take(")"):
            raise PatternError("this ( is not closed", at)
        return inner

    def _consumes(self, test: _Test) -> Callable[[int], int]:
        return lambda after: self._add(_State(test, next=[after]))

    def _escape(self, at: int) -> _Test:
        sign = self._peek()
        self._at += 1
        if not sign:
            raise PatternError(r"a \ at the end: write \\ for the character", at)
        if sign.lower() in _CLASSES:
            test = _CLASSES[sign.lower()]
            return test if sign.islower() else _inverse(test)
        if sign.isalnum() and sign not in _CONTROLS:
            raise PatternError(f"\\{sign} is not supported", at)
        return _literal(_CONTROLS.get(sign, sign))

    def _set(self, begin: int) -> _Test:
        inverse = self._take("^")
        tests: list[_Test] = []
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise PatternError("this [ is not closed", begin)
            first = False
            at = self._at
            low = self._member(tests)
            if low and self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._member([])
                if not high or high < low:
                    raise PatternError(f"{self._pattern[at : self._at]} is not a range", at)
                tests.append(_range(low, high))
            elif low:
                tests.append(_literal(low))
        self._at += 1

        def test(character: str) -> bool:
            return any(each(character) for each in tests)

        return _inverse(test) if inverse else test

    def _member(self, tests: list[_Test]) -> str:
        """Take a member of a set: return its character, or add the test of a class.

        For a class an empty text is returned.
        """
        at, sign = self._at, self._peek()
        self._at += 1
        if sign != "\\":
            return sign
        sign = self._peek()
        if sign and not sign.isalnum():
            self._at += 1
            return sign
        if sign in _CONTROLS:
            self._at += 1
            return _CONTROLS[sign]
        tests.append(self._escape(at))
        return ""


def escape(text: str) -> str:
    """Return the pattern that matches ``text``."""
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in text)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def _literal(sign: str) -> _Test:
    folded = sign.lower()
    return lambda character: character == folded


def _range(low: str, high: str) -> _Test:
    return lambda character: low <= character <= high or low <= character.upper() <= high


def _inverse(test: _Test) -> _Test:
    return lambda character: not test(character)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CLASSES: dict[str, _Test] = {"d": str.isdecimal, "w": _is_word, "s": str.isspace}
