"""Preemption of machines, by their provider's status.

A host that does not answer may be training. On a host that its provider reports as preempted, nothing runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet, Target
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.migration import Migration
from midstream.providers import fleet_slices
from midstream.providers.provider import SliceStatus

QUERY_INTERVAL = 10.0  # seconds between two requests to a provider


class PreemptedError(MidstreamError):
    """A machine of the target was preempted."""


@contextmanager
def unless_preempted(
    fleet: Fleet, target: Target, note: Callable[[str], None], consequence: str
) -> Generator[None, None, None]:
    """Suppress errors of unreachable hosts of a target, if it was preempted.

    The target is one that is not needed any more.

    Args:
        fleet: The fleet.
        target: Target whose hosts are used in the context.
        note: Receives a line for the user if the target was preempted.
        consequence: Describes in that line what is lost.

    Raises:
        HostError: A host does not answer, and its provider does not report a preemption.
    """
    try:
        yield
    except HostError as error:
        line = preempted(fleet, target)
        if not line:
            raise
        note(f"{error.message}; {line}: {consequence}")


def preempted(fleet: Fleet, target: Target) -> str:
    """Return the provider's line on a preempted host of the target.

    Empty where none is known to be preempted.
    """
    for name in target.hosts:
        status, line = fleet_slices.host_slice_status(fleet, name)
        if status == SliceStatus.PREEMPTED:
            return line
    return ""


class ProviderQuery:
    """Query of the provider of an unreachable target, at most once per interval."""

    def __init__(
        self, fleet: Fleet, target: Target, hint: str = "midstream --migrate RUN --to TARGET requests it again"
    ) -> None:
        self._fleet, self._target, self._hint = fleet, target, hint
        self._due = 0.0

    def check(self) -> None:
        """Query the provider if the interval has passed.

        Raises:
            PreemptedError: A host of the target was preempted.
        """
        if time.monotonic() < self._due:
            return
        line = preempted(self._fleet, self._target)
        self._due = time.monotonic() + QUERY_INTERVAL
        if line:
            raise PreemptedError(f"{self._target.name} was preempted: {line}", self._hint)


def provider_of(migration: Migration, group: HostGroup) -> ProviderQuery:
    """Return the provider query for the machines of a migration's source or target."""
    fleet = migration.fleet
    if group is not migration.source_group:
        return ProviderQuery(fleet, group.target)
    return ProviderQuery(fleet, group.target, f"midstream --migrate {migration.plan.run_id} --to TARGET --source-lost")
