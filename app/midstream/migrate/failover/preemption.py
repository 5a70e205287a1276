"""Machines that their provider has taken back. A host that does not answer may be training; of one that its provider
says is gone, nothing runs any more: that is the evidence that silence is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.providers import fleet_slices, interface

EVERY = 10.0  # seconds between two questions to a provider


class Preempted(MidstreamError):
    """A machine of the target is gone for good."""


@contextmanager
def unless_preempted(move: Any, side: Any, what: str) -> Iterator[None]:
    """What is done with a side that is not needed any more: where its machines are gone, the move goes on without it,
    and ``what`` says what is lost. A side that only falls silent is waited for, as everywhere."""
    try:
        yield
    except HostError as error:
        line = preempted(move.fleet, side.target)
        if not line:
            raise
        move.note(f"{error.message}; {line}: {what}")


def preempted(fleet: Fleet, target: Target) -> str:
    """What the provider says where it has taken a host of the target back; empty where it has not, or nobody knows."""
    for name in target.hosts:
        standing, line = fleet_slices.standing(fleet, name)
        if standing == interface.PREEMPTED:
            return line
    return ""


class ProviderQuery:
    """Asks about a target now and then, while it does not answer. ``mend``: what to do where it is gone."""

    def __init__(self, fleet: Fleet, target: Target, mend: str = "midstream --migrate asks for it anew"):
        self._fleet, self._target, self._mend = fleet, target, mend
        self._due = 0.0

    def check(self) -> None:
        """TakenBack where it is time to ask and the machines are gone."""
        if time.monotonic() < self._due:
            return
        line = preempted(self._fleet, self._target)
        self._due = time.monotonic() + EVERY
        if line:
            raise Preempted(f"{self._target.name} was taken back: {line}", self._mend)
