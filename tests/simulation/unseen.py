"""Work that changes nothing anyone sees, which simulated machines leave out. The story stays the same.

For hours of virtual time nothing but engines works: their updates until the next save are then one, and so are their
heartbeats. Once another task runs, disks have what they would have had. A probe looks at a run again once a program
has worked on its root. ``simulate.py --each-update`` leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from weakref import WeakKeyDictionary

from midstream_core.attempt import status_file
from midstream_core.attempt.status_file import StatusFile
from midstream_host.machine import probe
from simulation.cooperative import Event
from simulation.disks import WRITE_BACK
from simulation.machines import present
from simulation.scheduler import SCHEDULER

MARGIN = WRITE_BACK + 15.0  # seconds before another task runs: a crash shows what was written in the last ones
_poll = probe._Run.poll
_polled: WeakKeyDictionary[probe._Run, tuple[int, int]] = WeakKeyDictionary()  # what had worked on its root by then


def install() -> None:
    """Have probes poll what has changed. Call it once."""
    probe._Run.poll = _poll_changed  # type: ignore[method-assign]


def leave_out_nothing() -> None:
    """Make each update, heartbeat and poll."""
    SCHEDULER.watched_always = True
    probe._Run.poll = _poll  # type: ignore[method-assign]


def unseen_ends(seconds: float, enough: Callable[[float], bool] = lambda at: False) -> list[float]:
    """Return when the next steps of so many seconds end: one step, or all whose end no task sees.

    ``enough``: whether a step that ends at that time is the last one.
    """
    process = present()
    assert process is not None
    strikes = process.after_save is not None  # at a moment that no deadline shows
    limit = SCHEDULER.now if strikes else SCHEDULER.unseen_until() - MARGIN
    ends = [SCHEDULER.now + seconds]
    while ends[-1] + seconds <= limit and not enough(ends[-1]):
        ends.append(ends[-1] + seconds)
    return ends


class EngineStatus(StatusFile):
    """Status of a simulated engine, with the heartbeats that may be seen."""

    def _beat(self) -> None:
        ended, task = cast(Event, self._ended), SCHEDULER.current
        assert task is not None
        task.background = True
        while not ended.wait_until(unseen_ends(status_file.HEARTBEAT)[-1]):
            self._write_or_log(durable=False)


def _poll_changed(self: probe._Run) -> None:
    """Poll a run, unless nothing has worked on its root since the last poll, and no time is awaited."""
    process = present()
    assert process is not None
    reported, activity = self._reported, process.machine.activity
    worked = activity.count, SCHEDULER.outside
    timed = reported.get("unproven") or any(entry["pinned"] for entry in reported.get("checkpoints", ()))
    if activity.timed or timed or _polled.get(self) != worked:
        _poll(self)
        _polled[self] = worked
