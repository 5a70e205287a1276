"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARN, FAIL = "pass", "warn", "fail"
OWNERSHIP = "ownership"  # name of a check whose detail needs the user's consent


@dataclass(frozen=True)
class Check:
    """A check's name, state, detail and hint.

    ``host`` is empty if it is not about one host.
    """

    name: str
    state: str  # PASS, WARN or FAIL
    detail: str
    hint: str = ""
    host: str = ""


def judge(name: str, good: bool, detail: str, hint: str = "", host: str = "", otherwise: str = FAIL) -> Check:
    """Return PASS if ``good``, else ``otherwise`` with the hint.

    Args:
        name: Name of the check.
        good: Whether the check has passed.
        detail: What was found.
        hint: How to repair it; a check that passes has none.
        host: The host that was checked; empty: none.
        otherwise: Result of a check that has not passed.
    """
    return Check(name, PASS, detail, "", host) if good else Check(name, otherwise, detail, hint, host)
