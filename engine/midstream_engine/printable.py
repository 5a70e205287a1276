"""Messages, with values of any origin, in one printable line of limited length."""

from __future__ import annotations

LONGEST = 1000  # characters


def printable(text: str) -> str:
    r"""Return ``text`` with control characters escaped, cut to `LONGEST` characters.

    The escapes are Python's (``\x1b``, ``\n``).
    """
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)
