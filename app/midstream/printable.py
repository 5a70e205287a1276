"""Terminal-safe text from hosts, files and links: control characters as escapes."""

from __future__ import annotations

import re
from typing import Any

# C0, DEL and C1; every format character of Unicode (bidirectional controls, zero-width and tag characters among them);
# line and paragraph separators; lone surrogates, which no stream can encode.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    r"""Return ``text`` with control characters, except ``keep``, as Python escapes.

    Examples are ``\x1b``, ``\n`` and ``\u202e``.
    """
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def excerpt(text: str, most: int = 1000) -> str:
    """Return ``text``, cut to ``most`` characters with its length.

    A host's error can fill a terminal.
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def without_controls(text: str) -> str:
    """Return ``text`` without control characters, which keeps its width on the screen."""
    return text if text.isprintable() else _UNSAFE.sub("", text)


def printable_values(value: Any) -> Any:
    """Return a JSON value with every text made `printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_values(item) for item in value]
    return value


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
