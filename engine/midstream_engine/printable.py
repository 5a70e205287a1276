"""Messages, with values of any origin, in one printable line of limited length."""

from __future__ import annotations

MAX_LENGTH = 1000  # characters


def printable(text: str) -> str:
    r"""Return ``text`` with control characters escaped, cut to `MAX_LENGTH` characters.

    The escapes are Python's (``\x1b``, ``\n``).
    """
    cut = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}... ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in cut
    )
