"""Digests of batches, written by the optional ``midstream_tap`` in the trainer."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Dict

VARIABLE = "MIDSTREAM_TAP"  # environment variable of the trainer: the file that the tap appends to


class BatchTap:
    """Reader of the tap's lines: ``{"step", "rank", "digest", "elements"}``.

    A step's digest covers all ranks, in their order, and all batches of each rank: those of gradient accumulation.
    """

    def __init__(self, path: str) -> None:
        self._path, self._offset = path, 0
        self._digests: Dict[int, Dict[int, str]] = {}
        self._elements: Dict[int, int] = {}

    def poll(self) -> None:
        """Read new lines."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            try:
                value = json.loads(line)
                step, rank, digest = value["step"], value["rank"], value["digest"]
            except (ValueError, KeyError, TypeError):
                continue
            if type(step) is int and type(rank) is int and isinstance(digest, str) and len(digest) <= 128:
                ranks = self._digests.setdefault(step, {})
                ranks[rank] = _joined(ranks[rank], digest) if rank in ranks else digest
                elements = value.get("elements")
                if type(elements) is int and elements > 0:
                    self._elements[step] = self._elements.get(step, 0) + elements

    def digest(self, step: int) -> str:
        """Return the digest of a step's batches; empty without one."""
        ranks = self._digests.get(step)
        if not ranks:
            return ""
        return hashlib.sha256("".join(ranks[rank] for rank in sorted(ranks)).encode()).hexdigest()

    def elements(self, step: int) -> int:
        """Return how many numbers a step's batches have, of all ranks; 0: not known."""
        return self._elements.get(step, 0)


def _joined(before: str, digest: str) -> str:
    return hashlib.sha256("{}{}".format(before, digest).encode()).hexdigest()


def remove(path: str) -> None:
    """Remove the lines of an earlier start."""
    if os.path.exists(path):
        os.unlink(path)
