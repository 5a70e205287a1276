"""Text that a terminal, a user or a markup parser could misinterpret."""

from __future__ import annotations

import unicodedata

SEQUENCES = {
    "clipboard (OSC 52)": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "title (OSC 0)": "\x1b]0;owned\x07",
    "link (OSC 8)": "\x1b]8;;http://evil\x1b\\here\x1b]8;;\x1b\\",
    "clear (CSI 2J)": "\x1b[2J",
    "C1 CSI": "\x9b2J",
    "answer back": "\x1b[6n\x05",
    "bidi": "\u202egpj.exe\u2066\u200f\u061c",
    "separators": "one\u2028two\u2029three\x85four",
    "surrogate": "\udc9b",
    "tag": "\U000e0041",
    "erase": "safe\rrm\b\b\x7f",
    "markup": "[bold red]x[/] [link=file:///etc/passwd]here[/link] [@click=app.quit]quit[/]",
}
ALL = "".join(SEQUENCES.values())


def unsafe(text: str, keep: str = "") -> set[str]:
    """Return the characters of ``text`` that are not plain text, by the Unicode database."""
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set(keep)
