"""Engine flags in a field of a form."""

from __future__ import annotations

import shlex

EXAMPLE = "--trainer.num_train_steps 5000"


def words_of(text: str) -> tuple[str, ...]:
    """Split engine flags as a shell does.

    Raises:
        ValueError: A quote is not closed.
    """
    return tuple(shlex.split(text))


def flags_problem(text: str) -> str:
    """Return what is wrong with engine flags; empty if nothing is."""
    try:
        words = words_of(text)
    except ValueError as error:
        return f"engine flags: {error}"
    if words and not words[0].startswith("--"):
        return f"engine flags begin with --, as {EXAMPLE}"
    return ""
