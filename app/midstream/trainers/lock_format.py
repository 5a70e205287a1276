"""Format of the lock file that a run file names.

Hosts build environments from pip's requirements alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_CONDA = re.compile(r"^@EXPLICIT\s*$|^\s*-?\s*manager: conda\s*$|^(?:channels|dependencies):\s*$", re.MULTILINE)
_TOML_PACKAGES = re.compile(r"^\[\[package(?:s)?\]\]\s*$", re.MULTILINE)
CONDA_HINT = (
    "conda-lock install --prefix DIR on every host, or conda create --file for an explicit list, then "
    "environment: {python: DIR/bin/python}"
)


class OtherLock(NamedTuple):
    """A lock file that is no list of requirements: what it is, and what to do instead."""

    what: str
    hint: str


def other_lock(text: str) -> OtherLock | None:
    """Return what a lock file is where pip cannot install from it.

    None for requirements.
    """
    if _CONDA.search(text):
        return OtherLock("is a lock of conda", CONDA_HINT)
    if _TOML_PACKAGES.search(text):
        return OtherLock("is a lock in TOML", "export it as requirements with hashes (poetry export, pdm export)")
    return None
