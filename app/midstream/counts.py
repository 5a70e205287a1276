"""Counts with their nouns: ``1 step``, ``1,204 steps``, ``1 copy is``."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; ``plural`` defaults to the noun with ``s``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def agree(number: int, singular: str = "is", many: str = "are") -> str:
    """Return the verb that goes with a count."""
    return singular if number == 1 else many
