"""Hints for mistyped names: the nearest known ones."""

from __future__ import annotations

from collections.abc import Collection

_MARGIN = 0.1  # names that are this much less similar than the nearest one are not offered


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return ``did you mean NAME?`` with up to three of the nearest names.

    Return an empty text if none is near.
    """
    import difflib  # 5 ms that commands without a mistake do not pay

    near = difflib.get_close_matches(name, names, 3)
    similarity = {candidate: difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in near}
    near = [candidate for candidate in near if similarity[candidate] > similarity[near[0]] - _MARGIN]
    return f"did you mean {', '.join(near)}?" if near else ""


def nearest(name: str, names: Collection[str]) -> str:
    """Return a hint for an unknown name: the nearest known names, else all of them."""
    return did_you_mean(name, names) or f"known: {', '.join(names) or 'none'}"


def nearest_run(run_id: str, runs: Collection[str], unreachable: Collection[str]) -> str:
    """Return a hint for a missing run: the nearest runs, and unreachable hosts."""
    hint = nearest(run_id, runs) if runs else f"no host {'that answers ' if unreachable else ''}has a run"
    missing = f"; not answering: {', '.join(unreachable)}; midstream --status shows why" if unreachable else ""
    return hint + missing
