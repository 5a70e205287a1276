"""Check of JSON values against annotations.

Annotations are dataclasses, TypedDicts, Optional, List, Dict, Literal and the plain types.

Both programs check what they did not write themselves: files of a run directory, answers and lines of a host. The
source is streamed to hosts together with the records: standard library alone, Python 3.8.

Integers are not booleans, not negative and fit 64 bits; floats are finite; strings have at most ``TEXT`` characters
and can be encoded as UTF-8. ``Annotated[int, Between(low, high)]`` and ``Annotated[str, Text(limit)]`` replace these
rules, as ``Long(limit)`` does; ``Form`` requires a pattern. A field of a dataclass takes a form as
``metadata={"form": ...}``, and ``{"items": Class}`` where it is a list of that class's JSON objects. Unknown keys are
accepted: a newer version may have written them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import re
import sys
import typing
from typing import Any, Callable, Dict, List, Tuple, cast

from midstream_core.json_types import JsonValue

MAX_INTEGER = 2**63 - 1
MAX_FLOAT = sys.float_info.max
TEXT = 1 << 16  # characters of a string without a limit of its own

Check = Callable[[JsonValue], None]


class ShapeError(ValueError):
    """Error of a value with another shape than its annotation.

    The message names the path in it and what was found there.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""  # "seals[1].step"

    def inside(self, step: str) -> "ShapeError":
        """Prepend ``step`` to the path: the error as the enclosing value reports it."""
        self.path = step + ("." if self.path and not self.path.startswith("[") else "") + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what


@dataclasses.dataclass(frozen=True)
class Between:
    """Bounds of an integer, both inclusive."""

    low: int
    high: int = MAX_INTEGER


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """A number that may also be NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Text:
    """A file's name or content: at most ``limit`` characters, not necessarily UTF-8."""

    limit: int = MAX_INTEGER


@dataclasses.dataclass(frozen=True)
class Long:
    """A text to write again: at most ``limit`` characters that UTF-8 can encode."""

    limit: int


@dataclasses.dataclass(frozen=True)
class Form:
    """A string that matches ``pattern`` completely.

    ``name`` describes it: "a checkpoint's name".
    """

    name: str
    pattern: str


# Marks by their names, for modules that must not import this one.
MARKS: Dict[object, object] = {
    "text": Text(),
    "file name": Text(4096),
    "signed": Between(-(2**31)),
    "measured": NotFinite(),
}


def check(annotation: object, value: JsonValue) -> None:
    """Raise ShapeError unless ``value``, from JSON, has the shape of ``annotation``."""
    checker(annotation)(value)


@functools.lru_cache(maxsize=None)
def checker(annotation: object) -> Check:
    """Return the check of an annotation, built once.

    Manifests have thousands of entries.

    Raises TypeError for an annotation that has no check.
    """
    metadata = getattr(annotation, "__metadata__", ())
    if metadata:
        return _annotated(getattr(annotation, "__origin__", None), metadata)
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if annotation is Any or annotation is object:
        return _anything
    if annotation is None or annotation is type(None):
        return _null
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if dataclasses.is_dataclass(annotation):
        return _object(_fields(cast(Any, annotation)))
    required_keys = getattr(annotation, "__required_keys__", None)
    if required_keys is not None:
        return _object({name: (checker(hint), name in required_keys) for name, hint in _hints(annotation).items()})
    if origin is typing.Union or type(annotation).__name__ == "UnionType":
        return _either(arguments)
    if origin is list or annotation is list:
        return _list(checker(arguments[0]) if arguments else _anything)
    if origin is tuple:
        if arguments[1:] == (Ellipsis,):
            return _list(checker(arguments[0]))
        return _tuple([checker(argument) for argument in arguments])
    if origin in (dict, collections.abc.Mapping) or annotation is dict:
        return _dict(checker(arguments[1]) if arguments else _anything)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is getattr(typing, "NotRequired", typing.Literal):
        return checker(arguments[0])
    raise TypeError(f"no check for the annotation {annotation!r}")


def describe(value: JsonValue) -> str:
    """Describe a value for a message: "a string", "null"."""
    if value is None:
        return "null"
    for kind, name in ((bool, "a boolean"), (int, "an integer"), (float, "a number"), (str, "a string"),
                       (dict, "an object"), (list, "a list"), (tuple, "a list")):  # fmt: skip
        if isinstance(value, kind):
            return name
    return type(value).__name__


def _wrong(expected: str, value: JsonValue) -> ShapeError:
    return ShapeError(f"expected {expected}, found {describe(value)}")


def _anything(value: JsonValue) -> None:
    pass


def _null(value: JsonValue) -> None:
    if value is not None:
        raise _wrong("null", value)


def _bool(value: JsonValue) -> None:
    if value is not True and value is not False:
        raise _wrong("a boolean", value)


def _integer(value: JsonValue) -> None:
    if type(value) is not int:
        raise _wrong("an integer", value)
    if not 0 <= value <= MAX_INTEGER:
        raise ShapeError(
            "expected an integer from 0 on, found a negative one" if value < 0 else "the integer is too large"
        )


def _between(bounds: Between) -> Check:
    def check(value: JsonValue) -> None:
        if type(value) is not int:
            raise _wrong("an integer", value)
        if not bounds.low <= value <= bounds.high:
            raise ShapeError(f"the integer is not between {bounds.low} and {bounds.high}")

    return check


def _number(value: JsonValue) -> None:
    if type(value) is not float and type(value) is not int:
        raise _wrong("a number", value)
    if not -MAX_FLOAT <= value <= MAX_FLOAT:  # Python's reader accepts NaN and the infinities
        raise ShapeError("expected a finite number")


def _measured(value: JsonValue) -> None:
    if type(value) is not float:
        _number(value)


def _string(value: JsonValue, limit: int = TEXT) -> None:
    if type(value) is not str:
        raise _wrong("a string", value)
    if len(value) > limit:
        raise ShapeError(f"the string has {len(value)} characters, more than {limit}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ShapeError("the string cannot be written as UTF-8") from None


def _text(limit: int) -> Check:
    def check(value: JsonValue) -> None:
        if type(value) is not str:
            raise _wrong("a string", value)
        if len(value) > limit:
            raise ShapeError(f"the string has {len(value)} characters, more than {limit}")

    return check


def _form(form: Form) -> Check:
    pattern = re.compile(form.pattern)

    def check(value: JsonValue) -> None:
        if type(value) is not str:
            raise _wrong(form.name, value)
        if not pattern.fullmatch(value):
            raise ShapeError(f"{value[:60]!r} is not {form.name}")

    return check


_PLAIN: Dict[object, Check] = {bool: _bool, int: _integer, float: _number, str: _string}


def _annotated(kind: object, metadata: Tuple[object, ...]) -> Check:
    for entry in metadata:
        mark = MARKS.get(entry, entry)
        if isinstance(mark, Between):
            return _between(mark)
        if isinstance(mark, Text):
            return _text(mark.limit)
        if isinstance(mark, Long):
            return functools.partial(_string, limit=mark.limit)
        if isinstance(mark, Form):
            return _form(mark)
        if isinstance(mark, NotFinite):
            return _measured
    return checker(kind)


def _either(kinds: Tuple[object, ...]) -> Check:
    checks = [checker(kind) for kind in kinds if kind is not type(None)]
    nullable = len(checks) < len(kinds)

    def check(value: JsonValue) -> None:
        if value is None and nullable:
            return
        for number, check_kind in enumerate(checks):
            try:
                check_kind(value)
                return
            except ShapeError:
                if number == len(checks) - 1:
                    raise

    return check


def _list(item: Check) -> Check:
    def check(value: JsonValue) -> None:
        if not isinstance(value, (list, tuple)):
            raise _wrong("a list", value)
        index = 0
        try:
            for index, entry in enumerate(value):
                item(entry)
        except ShapeError as error:
            raise error.inside(f"[{index}]") from None

    return check


def _tuple(items: List[Check]) -> Check:
    def check(value: JsonValue) -> None:
        if not isinstance(value, (list, tuple)):
            raise _wrong("a list", value)
        if len(value) != len(items):
            raise ShapeError(f"expected {len(items)} values, found {len(value)}")
        for index, item in enumerate(items):
            try:
                item(value[index])
            except ShapeError as error:
                raise error.inside(f"[{index}]") from None

    return check


def _dict(item: Check) -> Check:
    def check(value: JsonValue) -> None:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        name = ""
        try:
            for name, entry in value.items():
                item(entry)
        except ShapeError as error:
            raise error.inside(str(name)[:60]) from None

    return check


def _literal(values: Tuple[object, ...]) -> Check:
    def check(value: JsonValue) -> None:
        if not any(value == literal and type(value) is type(literal) for literal in values):
            raise ShapeError(f"{str(value)[:60]!r} is not one of {', '.join(map(repr, values))}")

    return check


def _object(fields: Dict[str, Tuple[Check, bool]]) -> Check:
    checks = [(name, check_field) for name, (check_field, _) in fields.items()]
    required = [name for name, (_, needed) in fields.items() if needed]
    needed = frozenset(required)

    def check(value: JsonValue) -> None:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        if not needed <= value.keys():
            raise ShapeError("lacks " + ", ".join(name for name in required if name not in value))
        name = ""
        try:
            for name, check_field in checks:
                if name in value:
                    check_field(value[name])
        except ShapeError as error:
            raise error.inside(name) from None

    return check


def _hints(kind: object) -> Dict[str, object]:
    if sys.version_info >= (3, 9):
        return typing.get_type_hints(kind, include_extras=True)  # novm: guarded
    return typing.get_type_hints(kind)


def _fields(kind: type) -> Dict[str, Tuple[Check, bool]]:
    hints = _hints(kind)
    checks: Dict[str, Tuple[Check, bool]] = {}
    for field in dataclasses.fields(kind):
        check_value = checker(hints[field.name])
        form, items = field.metadata.get("form"), field.metadata.get("items")
        if items is not None:
            check_value = _list(checker(items))
        if isinstance(form, Long):
            check_value = functools.partial(_string, limit=form.limit)
        elif form is not None:
            check_value = _formed(check_value, _form(form))
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        checks[field.name] = check_value, required
    return checks


def _formed(check_value: Check, form: Check) -> Check:
    """Check with ``check_value``, then the form of each string."""

    def check(value: JsonValue) -> None:
        check_value(value)
        if isinstance(value, str):
            form(value)
        elif isinstance(value, (list, tuple)):
            _list(form)(value)

    return check
