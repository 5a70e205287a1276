"""Policy of reconnecting after contact with a host is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.deadline import RECONNECT_STEP, Deadline

E = TypeVar("E", bound=Exception)


@dataclass(frozen=True)
class ReconnectPolicy(Generic[E]):
    """Which errors are lost contact, the delays between tries, and their end.

    Attributes:
        lost: Errors that are lost contact.
        first_delay: Seconds from the loss to the first try.
        factor: Growth of the delay from one try to the next.
        largest_delay: Seconds that no delay exceeds.
        total_time: Seconds in which this process runs, after which contact is lost for good; None: any time.
        tries: Number of tries after which it is; None: any number.
        spread: Share by which a delay is shortened at random, at most.
    """

    lost: tuple[type[E], ...]
    first_delay: float
    factor: float = 1.0
    largest_delay: float = 16.0
    total_time: float | None = None
    tries: int | None = None
    spread: float = 0.0


# A watched host: for as long as it is watched. The spread distributes the load when many hosts behind one gateway
# become reachable at the same moment. Also a malformed line of a probe ends its connection.
FEED: ReconnectPolicy[Exception] = ReconnectPolicy(
    (HostError, OSError, ValueError, KeyError, TypeError), 0.5, factor=2.0, spread=0.5
)
# A call of a function that may be repeated: its caller waits. An error that the host answers is none.
CALL = ReconnectPolicy((ConnectionLostError,), 1.0, tries=2)
# A migration: losing contact is not losing the run.
MIGRATION = ReconnectPolicy((HostError,), 1.0, total_time=600.0)
# A standby that is to end: the run is safe, and the standby's lease ends it in any case.
STANDBY_END = ReconnectPolicy((HostError,), 1.0, total_time=60.0)
ONE_TRY = ReconnectPolicy((HostError,), 0.0, tries=0)
# A log that is followed: its user ends it.
FOLLOWED_LOG = ReconnectPolicy((HostError,), 5.0)


class Reconnect:
    """The tries after one loss of contact."""

    def __init__(self, policy: ReconnectPolicy[Any], generator: random.Random | None = None) -> None:
        self._policy = policy
        self._generator = generator or random.Random()
        self._tries = 0
        self._deadline = Deadline(policy.total_time, RECONNECT_STEP)

    def exhausted(self) -> bool:
        """Return True once contact is lost for good. Called between two tries."""
        tries = self._policy.tries
        return self._deadline.count() or (tries is not None and self._tries >= tries)

    def delay(self, least: float = 0.0) -> float:
        """Return the seconds until the next try. ``least`` replaces a shorter delay."""
        policy = self._policy
        delay = min(policy.largest_delay, policy.first_delay * policy.factor ** min(self._tries, 64))
        self._tries += 1
        return max(least, delay) * self._generator.uniform(1.0 - policy.spread, 1.0)

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._tries = 0
