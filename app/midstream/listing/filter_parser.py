"""Parser of the filter language; docs/reference/filters.md describes it.

expression = conjunction {"OR" conjunction}
conjunction = condition {["AND"] condition}
condition = ("NOT" | "!") condition | "(" expression ")" | [field operator] value | "~" pattern
operator = ":" | "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from midstream.listing import filter_values
from midstream.listing.conditions import AllOf, AnyOf, Comparison, Condition, Not, Search, searched_fields
from midstream.listing.field_type import Field, Fields
from midstream.listing.filter_error import FilterError
from midstream.listing.filter_values import EXAMPLES, Kind, Span, ValueFormError
from midstream.listing.linear_pattern import LinearPattern, PatternError

MAX_LENGTH = 500  # characters of a filter
MAX_NESTING = 30  # parentheses and NOTs in each other
_SPACE = re.compile(r"\s*")
_FIELD = re.compile(r"(?P<name>[^\W\d][\w./-]*)(?P<operator>:|!=|!~|<=|>=|<|>|=|~)")
TEXT_OPERATORS = (":", "=", "!=", "~", "!~")
NUMBER_OPERATORS = ("<", "<=", ">", ">=", "=", "!=", ":")


def parse(text: str, fields: Fields, now: float) -> Condition:
    """Parse a filter; an empty one passes every item.

    Args:
        text: The filter.
        fields: The fields that it may name.
        now: UTC seconds, for ``today`` and times without a date.

    Raises:
        FilterError: The filter is malformed.
    """
    if len(text) > MAX_LENGTH:
        raise FilterError(f"the filter has {len(text)} characters, at most {MAX_LENGTH} are allowed", MAX_LENGTH + 1)
    return _FilterParser(text, fields, now).parse()


class _FilterParser:
    """Recursive descent over the text; ``_at`` is the index of the next character."""

    def __init__(self, text: str, fields: Fields, now: float) -> None:
        self._text = text
        self._fields = fields
        self._now = now
        self._at = 0
        self._nesting = 0

    def parse(self) -> Condition:
        self._skip_space()
        if self._at == len(self._text):
            return AllOf(())
        expression = self._expression()
        if self._at < len(self._text):
            raise FilterError("this ) closes nothing", self._at + 1, "quote it to search for it")
        return expression

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None  # the pattern matches an empty text
        self._at = match.end()

    def _keyword(self, word: str) -> bool:
        """Take a keyword. Keywords are in capitals, so that ``or`` can be searched for."""
        end = self._at + len(word)
        if self._text.startswith(word, self._at) and (end == len(self._text) or self._text[end] in " \t()"):
            self._at = end
            self._skip_space()
            return True
        return False

    def _expression(self) -> Condition:
        alternatives = [self._conjunction()]
        while self._keyword("OR"):
            alternatives.append(self._conjunction())
        return alternatives[0] if len(alternatives) == 1 else AnyOf(tuple(alternatives))

    def _conjunction(self) -> Condition:
        conditions = [self._condition()]
        while True:
            begin = self._at
            joined = self._keyword("AND")
            if not joined and (self._at == len(self._text) or self._text[self._at] == ")" or self._keyword("OR")):
                self._at = begin
                return conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions))
            conditions.append(self._condition())

    def _condition(self) -> Condition:
        begin = self._at
        if self._at == len(self._text):
            raise FilterError("a condition is missing at the end", self._at + 1)
        if self._keyword("NOT") or self._exclamation():
            return Not(self._nested(self._condition, begin))
        if self._text[self._at] == "(":
            return self._parentheses(begin)
        for word in ("AND", "OR"):
            if self._keyword(word):
                raise FilterError(f"a condition is missing before {word}", begin + 1, f'"{word}" searches for the word')
        if self._text[self._at] == ")":
            reason = "a condition is missing before )" if begin else "this ) closes nothing"
            raise FilterError(reason, begin + 1)
        condition = self._comparison()
        self._skip_space()
        return condition

    def _exclamation(self) -> bool:
        if self._text[self._at] != "!" or self._text.startswith("!~", self._at):
            return False
        self._at += 1
        self._skip_space()
        return True

    def _nested(self, read: Callable[[], Condition], begin: int) -> Condition:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise FilterError(f"more than {MAX_NESTING} conditions in each other", begin + 1)
        condition = read()
        self._nesting -= 1
        return condition

    def _parentheses(self, begin: int) -> Condition:
        self._at += 1
        self._skip_space()
        parentheses = self._nested(self._expression, begin)
        if self._at == len(self._text):
            raise FilterError("this ( is not closed", begin + 1)
        self._at += 1
        self._skip_space()
        return parentheses

    # ------------------------------------------------------------------------------------------ one condition

    def _comparison(self) -> Condition:
        begin = self._at
        for operator in ("!~", "~"):
            if self._text.startswith(operator, begin):
                self._at += len(operator)
                value, at, quoted = self._value(f"a pattern is missing after {operator}")
                search = Search(self._text_fields, value, self._pattern(value, at, quoted))
                return Not(search) if operator == "!~" else search
        match = _FIELD.match(self._text, begin)
        if match is None:
            value, _, _ = self._value("a word is missing")
            return Search(self._text_fields, value, None)
        field = self._field(match["name"], begin)
        self._at = match.end()
        operator = match["operator"]
        value, at, quoted = self._value(f"a value is missing after {match[0]}")
        return self._compared(field, operator, value, at, quoted)

    @property
    def _text_fields(self) -> tuple[Field, ...]:
        return searched_fields(self._fields.values())

    def _field(self, written: str, begin: int) -> Field:
        """Return the field with this name, or the only one that begins with it."""
        name = written.lower()
        if (named := self._fields.named(name)) is not None:
            return named
        names = [field for field in self._fields if field.startswith(name)]
        if len(names) == 1:
            return self._fields[names[0]]
        if names:
            raise FilterError(f"{written} is ambiguous: {_either(names)}", begin + 1)
        reason = f"no such field {written}; fields are {', '.join(self._fields)}"
        raise FilterError(reason, begin + 1, "a text in quotes is searched for as it is")

    def _compared(self, field: Field, operator: str, value: str, at: int, quoted: bool) -> Condition:
        if field.kind is Kind.ANY:
            return self._compared_any(field, operator, value, at, quoted)
        is_text = field.kind in (Kind.TEXT, Kind.LIST)
        allowed = TEXT_OPERATORS if is_text else NUMBER_OPERATORS
        if operator not in allowed:
            reason = f"{operator} does not compare {field.kind.value}, which {field.name} is"
            raise FilterError(reason, self._before(at, operator), f"write one of {' '.join(allowed)}")
        if is_text:
            pattern = self._pattern(value, at, quoted) if "~" in operator else None
            comparison = Comparison(field, operator.removeprefix("!"), value, pattern=pattern)
        else:
            span = self._span(field, value, at)
            comparison = Comparison(field, {":": "=", "!=": "="}.get(operator, operator), value, span)
        return Not(comparison) if operator.startswith("!") else comparison

    def _compared_any(self, field: Field, operator: str, value: str, at: int, quoted: bool) -> Condition:
        """Return a comparison of numbers where the value is one, and else of texts."""
        try:
            span = (math.nan, math.nan) if quoted else filter_values.parse(Kind.NUMBER, value, self._now)
        except ValueFormError:
            span = (math.nan, math.nan)
            if operator not in TEXT_OPERATORS:
                raise FilterError(
                    f"{value or 'an empty text'} is not a number", at + 1, f"for example {EXAMPLES[Kind.NUMBER]}"
                ) from None
        pattern = self._pattern(value, at, quoted) if "~" in operator else None
        comparison = Comparison(field, operator.removeprefix("!"), value, span, pattern)
        return Not(comparison) if operator.startswith("!") else comparison

    def _span(self, field: Field, value: str, at: int) -> Span:
        try:
            return filter_values.parse(field.kind, value, self._now)
        except ValueFormError:
            reason = f"{value or 'an empty text'} is not {field.kind.value}"
            raise FilterError(reason, at + 1, f"for example {EXAMPLES[field.kind]}") from None

    def _before(self, at: int, operator: str) -> int:
        return self._text.rfind(operator, 0, at) + 1

    def _pattern(self, value: str, at: int, quoted: bool) -> LinearPattern:
        try:
            return LinearPattern(value)
        except PatternError as error:
            raise FilterError(str(error), at + 1 + quoted + error.position) from None

    def _value(self, missing: str) -> tuple[str, int, bool]:
        """Take a word or a quoted text: return it, its index, and whether it was quoted."""
        begin = self._at
        if self._text.startswith('"', begin):
            return self._quoted(begin), begin, True
        depth = 0
        while self._at < len(self._text) and not self._text[self._at].isspace():
            sign = self._text[self._at]
            depth += {"(": 1, ")": -1}.get(sign, 0)
            if depth < 0:
                break
            self._at += 2 if sign == "\\" and self._text[self._at + 1 : self._at + 2].strip() else 1
        if self._at == begin:
            raise FilterError(missing, begin + 1, '"" is an empty text')
        return self._text[begin : self._at], begin, False

    def _quoted(self, begin: int) -> str:
        r"""Take a quoted text; ``\"`` is a quote and ``\\`` a backslash in it."""
        characters: list[str] = []
        at = begin + 1
        while at < len(self._text) and self._text[at] != '"':
            if self._text[at] == "\\" and self._text[at + 1 : at + 2] in ('"', "\\"):
                at += 1
            characters.append(self._text[at])
            at += 1
        if at == len(self._text):
            raise FilterError("this quote is not closed", begin + 1)
        self._at = at + 1
        if self._at < len(self._text) and not (self._text[self._at].isspace() or self._text[self._at] == ")"):
            raise FilterError("a space is missing after the quote", self._at + 1)
        return "".join(characters)


def _either(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"
