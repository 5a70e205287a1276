"""Intervals of simulated programs, and texts that every simulation parses again.

An update takes 5 s in a simulation, where it takes a fraction of a second in tests of real processes: what looks for
news several times a second would only cost computing.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

from midstream import plain_yaml
from midstream.fleet import fleet_yaml
from midstream.hosts import deadline
from midstream.migrate.failover import guard
from midstream.migrate.journal import journal
from midstream.migrate.steps import observation
from midstream.watch import watcher
from simulation.operating_system import replace_everywhere

POLL = 5.0  # seconds


def install() -> None:
    """Set the intervals, and have each text parsed once. Call it once."""
    guard.POLL_INTERVAL = POLL  # type: ignore[misc]
    observation.CHECK_INTERVAL = POLL  # type: ignore[misc]
    watcher.MAX_TICK = POLL / 2  # type: ignore[misc]
    journal.FOLLOW_POLL = 1.0  # type: ignore[misc]
    deadline.POLL_INTERVAL = deadline.MAX_STEP  # type: ignore[misc]
    for parse in (plain_yaml.load_plain, fleet_yaml.load_yaml):
        replace_everywhere(parse, _parsed_once(parse))


def _parsed_once(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that parses each text once; each caller gets its own values."""

    @functools.cache
    def dumped(text: str) -> bytes:
        return pickle.dumps(parse(text))

    return lambda text: pickle.loads(dumped(text))
