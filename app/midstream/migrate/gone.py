"""Machines that their provider has taken back. A host that does not answer may be training; of one that its provider
says is gone, nothing runs any more: that is the evidence that silence is not."""

from __future__ import annotations

import time

from midstream.errors import MidstreamError
from midstream.fleet.config import Fleet, Target
from midstream.hosts.providers import base, slices

EVERY = 10.0  # seconds between two questions to a provider


class TakenBack(MidstreamError):
    """A machine of the target is gone for good."""


def taken_back(fleet: Fleet, target: Target) -> str:
    """What the provider says where it has taken a host of the target back; empty where it has not, or nobody knows."""
    for name in target.hosts:
        standing, line = slices.standing(fleet, name)
        if standing == base.GONE:
            return line
    return ""


class Asked:
    """Asks about a target now and then, while it does not answer."""

    def __init__(self, fleet: Fleet, target: Target):
        self._fleet, self._target = fleet, target
        self._due = 0.0

    def check(self) -> None:
        """TakenBack where it is time to ask and the machines are gone."""
        if time.monotonic() < self._due:
            return
        line = taken_back(self._fleet, self._target)
        self._due = time.monotonic() + EVERY
        if line:
            raise TakenBack(f"{self._target.name} was taken back: {line}", "midstream --migrate asks for it anew")
