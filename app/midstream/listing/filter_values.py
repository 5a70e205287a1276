"""Filter values as users write them: numbers, durations, sizes, shares, times."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum

_NUMBER = re.compile(
    r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d*)?(e[+-]?\d{1,3})?([kmgt]?)", re.ASCII | re.IGNORECASE
)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([smhdw]?)", re.ASCII | re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NEXT_UNIT = {"w": "d", "d": "h", "h": "m", "m": "s"}  # 3m20 is 3 m 20 s, as durations are shown
_SIZE = re.compile(r"([\d.,]+)\s*(?:([kmgtp])(i?)b?|b)?", re.ASCII | re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class Kind(Enum):
    """Kinds of a field's values; the value is the noun in messages."""

    TEXT = "text"
    LIST = "a list of texts"
    NUMBER = "a number"
    DURATION = "a duration"
    SIZE = "a size"
    SHARE = "a share"
    TIME = "a time"
    ANY = "a number or a text"


EXAMPLES = {
    Kind.NUMBER: "2.5, 10k, 1,000, nan",
    Kind.DURATION: "90s, 5m, 1h30m, 2d",
    Kind.SIZE: "500MB, 20GB, 1TiB",
    Kind.SHARE: "50% or 0.5",
    Kind.TIME: "2026-11-20, 2026-11-20T10:30, 10:30, today, yesterday",
}
_FORMS = {
    "%Y-%m-%d": timedelta(days=1),
    "%Y-%m-%dT%H:%M": timedelta(minutes=1),
    "%Y-%m-%dT%H:%M:%S": timedelta(seconds=1),
    "%H:%M": timedelta(minutes=1),
}
Span = tuple[float, float]  # the values [first, last] that a written one stands for


class ValueFormError(ValueError):
    """A text is not a value of its kind."""


def parse(kind: Kind, text: str, now: float) -> Span:
    """Return the values that ``text`` stands for.

    Of all kinds but times these are one value.

    Args:
        kind: What the field holds, not `Kind.TEXT` or `Kind.LIST`.
        text: The value.
        now: UTC seconds, for ``today`` and for times without a date.

    Raises:
        ValueFormError: ``text`` is not a value of this kind.
    """
    if kind is Kind.TIME:
        return _time(text, now)
    value = _READERS[kind](text)
    return value, value


def _number(text: str) -> float:
    if text.lower() in ("nan", "inf", "+inf", "-inf"):
        return float(text)
    match = _NUMBER.fullmatch(text)
    if match is None or not any(character.isdecimal() for character in text):
        raise ValueFormError
    sign, digits, fraction, exponent, unit = (group or "" for group in match.groups())
    return float(f"{sign}{digits.replace(',', '') or '0'}{fraction}{exponent}") * _FACTORS[unit.lower()]


def _duration(text: str) -> float:
    """Read seconds from ``90``, ``90s``, ``1h30m`` or ``3m20``.

    Units are in falling order.
    """
    total, at, unit = 0.0, 0, ""
    while at < len(text):
        match = _DURATION.match(text, at)
        if match is None:
            raise ValueFormError
        written = match[2].lower() or (_NEXT_UNIT.get(unit, "") if unit else "s")
        if not written or (unit and _SECONDS[written] >= _SECONDS[unit]) or (not match[2] and match.end() < len(text)):
            raise ValueFormError
        total += float(match[1]) * _SECONDS[written]
        at, unit = match.end(), written
    if not unit:
        raise ValueFormError
    return total


def _size(text: str) -> float:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueFormError
    unit = (match[2] or "").lower()
    return _number(match[1]) * (1024 if match[3] else 1000) ** _POWERS.get(unit, 0)


def _share(text: str) -> float:
    """Read 0..1; a number above 1 needs its percent sign."""
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not text.endswith("%") and not 0 <= value <= 1:
        raise ValueFormError
    return value


def _time(text: str, now: float) -> Span:
    """Return the first and last moment of a day, minute or second, by local time."""
    today = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    if text.lower() in days:
        return _span(days[text.lower()], timedelta(days=1))
    for form, length in _FORMS.items():
        try:
            moment = datetime.strptime(text.upper(), form)
        except ValueError:
            continue
        if form == "%H:%M":
            moment = today.replace(hour=moment.hour, minute=moment.minute)
        return _span(moment, length)
    raise ValueFormError


def _span(begin: datetime, length: timedelta) -> Span:
    try:
        return begin.timestamp(), (begin + length).timestamp() - 1e-6
    except (ValueError, OverflowError, OSError):
        raise ValueFormError from None


_READERS: dict[Kind, Callable[[str], float]] = {
    Kind.NUMBER: _number,
    Kind.DURATION: _duration,
    Kind.SIZE: _size,
    Kind.SHARE: _share,
}
