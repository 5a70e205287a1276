"""Labels and paths of slices, for every provider."""

from __future__ import annotations

import getpass
import re

from midstream.errors import UsageError
from midstream.fleet.slice_target import SliceTarget
from midstream.providers.provider import OWNER_LABEL, PRICE_LABEL, TARGET_LABEL, TOKEN_LABEL


def labels_of(name: str, target: SliceTarget, token: str) -> dict[str, str]:
    """Return the labels of everything that a creation creates."""
    price = {PRICE_LABEL: label(target.price_class)} if target.flex_start else {}
    return {TARGET_LABEL: label(name), TOKEN_LABEL: token, OWNER_LABEL: label(getpass.getuser()), **price}


def label(text: str) -> str:
    """Return the text as a valid label value.

    Valid are lower case letters, digits, `-` and `_`, at most 63 characters.
    """
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def split_path(text: str) -> tuple[str, str, str]:
    """Split ``PROJECT/ZONE/NAME`` into its parts. Raises UsageError."""
    words = text.split("/")
    if len(words) != 3 or not all(words):
        raise UsageError(f"{text!r} names no slice", "PROJECT/ZONE/NAME, or a target of the fleet file")
    return words[0], words[1], words[2]
