"""Name of a reservation in the fleet file: ``NAME``, ``PROJECT/NAME`` or full."""

from __future__ import annotations

import re

_FULL = re.compile(
    r"(?:projects/)?([a-z][-a-z0-9:.]{0,61})/(?:(?:locations|zones)/[a-z0-9-]{1,63}/)?(?:reservations/)?"
    r"([a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
)
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def reservation_parts(text: str) -> tuple[str, str] | None:
    """Return project (empty: the target's own) and name; None if malformed."""
    if _NAME.fullmatch(text):
        return "", text
    match = _FULL.fullmatch(text)
    return None if match is None else (match[1], match[2])
