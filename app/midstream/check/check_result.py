"""One line of a check."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, FAIL = "pass", "warn", "fail"


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and the line that mends it. ``host`` where it is one host's."""

    name: str
    state: str  # PASS, WARN or FAIL
    detail: str
    hint: str = ""
    host: str = ""


def judge(name: str, good: bool, detail: str, hint: str = "", host: str = "", otherwise: str = FAIL) -> Check:
    """PASS where it is good, else ``otherwise`` with its fix."""
    return Check(name, PASS, detail, "", host) if good else Check(name, otherwise, detail, hint, host)
