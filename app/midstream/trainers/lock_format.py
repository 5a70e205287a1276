"""Format of a lock file from which hosts cannot build an environment."""

from __future__ import annotations

import re
from typing import NamedTuple

_PIXI = re.compile(r"^environments:\s*$", re.MULTILINE)
_CONDA = re.compile(r"^(?:channels|dependencies):", re.MULTILINE)
_TOML_PACKAGES = re.compile(r"^\[\[package(?:s)?\]\]\s*$", re.MULTILINE)


class OtherLock(NamedTuple):
    """A file that hosts do not install: what it is, and what to do instead."""

    what: str
    hint: str


def other_lock(text: str) -> OtherLock | None:
    """Return what a lock file is where pip cannot install from it.

    None for requirements.
    """
    if _PIXI.search(text):
        return OtherLock("is a lock of pixi", "pixi workspace export conda-explicit-spec DIR, and name the file in DIR")
    if _CONDA.search(text):
        return OtherLock(
            "is an environment of conda without exact packages",
            "conda-lock lock --file environment.yml --platform linux-64, then environment: {lock: conda-lock.yml}",
        )
    if _TOML_PACKAGES.search(text):
        return OtherLock("is a lock in TOML", "export it as requirements with hashes (poetry export, pdm export)")
    return None
