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
from midstream.launch import attempt_monitor
from midstream.migrate.failover import guard
from midstream.migrate.journal import journal
from midstream.migrate.steps import observation, queue_wait, replica, streamed_copy
from midstream.watch import watcher
from midstream_host.copy import growing_checkpoint
from simulation.operating_system import replace_everywhere

POLL = 5.0  # seconds
LOOK = 2.2 * POLL  # seconds between two looks at what an answer of the watched hosts wakes as well


def install() -> None:
    """Set the intervals, and have each text parsed once. Call it once."""
    for module, name, seconds in (
        (guard, "POLL_INTERVAL", POLL), (observation, "CHECK_INTERVAL", POLL), (observation, "REQUEST_INTERVAL", LOOK),
        (watcher, "MAX_TICK", LOOK), (journal, "FOLLOW_POLL", POLL), (deadline, "POLL_INTERVAL", LOOK),
        (queue_wait, "WAIT_STEP", 2 * POLL), (queue_wait, "QUERY_INTERVAL", 2 * POLL), (replica, "POLL_INTERVAL", POLL),
        (attempt_monitor, "POLL_INTERVAL", POLL / 4), (streamed_copy, "POLL_INTERVAL", POLL / 4),
        (growing_checkpoint, "POLL_INTERVAL", POLL / 4),
    ):  # fmt: skip
        setattr(module, name, seconds)
    deadline.Deadline.__init__.__defaults__ = (LOOK,)
    for parse in (plain_yaml.load_plain, fleet_yaml.load_yaml):
        replace_everywhere(parse, _parsed_once(parse))


def _parsed_once(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that parses each text once; each caller gets its own values."""

    @functools.cache
    def dumped(text: str) -> bytes:
        return pickle.dumps(parse(text))

    return lambda text: pickle.loads(dumped(text))
