"""One slice at its provider's service, and looks that may fail.

A look that fails is no evidence about the slice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from midstream.providers.provider import ErrorKind, Polling, ProviderError, Slice

PASSING = (ErrorKind.UNAVAILABLE, ErrorKind.RATE, ErrorKind.BUSY)  # what a look's failure may end by itself
FIND_TIMEOUT = 60.0  # seconds that the looks before a deletion may fail


def clock() -> float:
    """Return seconds that include those in which this machine sleeps.

    `time.monotonic` on Linux leaves these out.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def awake_clock() -> float:
    """Return seconds without those in which this machine sleeps and gets no answers."""
    return time.monotonic()


class Service(Protocol):
    """One slice at its service.

    All methods raise ProviderError; its kind says whether a call had an effect.

    UNAVAILABLE: there was no answer, and the call may have had its effect. RATE: refused for now, without effect. Every
    other kind: refused. EXISTS: something has that name, perhaps by the same call before.
    """

    path: str  # PROJECT/ZONE/NAME
    text: str  # what is requested, in words: "v3-32, spot, queued"
    partial: bool  # a part of it was created before a refusal
    by_hand: str  # the command of the provider's own tool that deletes it

    def find(self) -> Slice | None:
        """Look once, without retries.

        Returns None if the service answers that nothing has the name.
        """
        ...

    def start(self, token: str) -> None:
        """Send the request. May be called again with the same token."""
        ...

    def failure(self) -> ProviderError | None:
        """Return the error that ended the request; None while it runs or has succeeded."""
        ...

    def remove(self, slice_: Slice) -> None:
        """Request the deletion of everything that belongs to ``slice_``."""
        ...


def find_patiently(find: Callable[[], Slice | None], also: Sequence[ErrorKind] = ()) -> Slice | None:
    """Look until a look succeeds, for `FIND_TIMEOUT` seconds.

    Refusals that do not pass are raised at once: missing permissions, wrong names. ``also``: kinds that may pass.

    Raises:
        ProviderError: No look succeeded in time; it is the last error.
    """
    deadline, polling = awake_clock() + FIND_TIMEOUT, Polling()
    while True:
        try:
            return find()
        except ProviderError as error:
            if error.kind not in (*PASSING, *also) or awake_clock() > deadline:
                raise
        polling.wait()
