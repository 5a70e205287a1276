"""A trainer that an attempt has adopted, and its fence without a driver.

A trainer that a user has started is not ended with the driver: it trains on. The process that outlives the driver
(`marked_processes.watch_driver`) keeps the fence in its place, and the trainer can be adopted again.
"""

from __future__ import annotations

import os
import posixpath
import time

from midstream_core import records
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_host.driver.attempt_fence import keep_fence
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError, say
from midstream_host.driver.trainer_process import Adopted

ADOPTED = "adopted.json"  # of an attempt: identity of the trainer that it has adopted
FENCE_INTERVAL = 0.5  # seconds between two looks at the fence without a driver


def adopt(place: AttemptPlace, pid: int, started: int = 0) -> Adopted:
    """Record a running process as the trainer of this attempt.

    ``started``: its start time, 0 where it is not known. A later process may have the same pid.

    Raises EndedEarlyError where it does not run.
    """
    identity = records.identify(pid)
    if identity is None or started not in (0, identity.start_ticks):
        raise EndedEarlyError("process {} does not run".format(pid))
    records.write_json(posixpath.join(place.files.dir, ADOPTED), identity.to_json())
    return Adopted(identity)


def refuse_adopted(place: AttemptPlace) -> None:
    """Raise EndedEarlyError where an earlier attempt's adopted trainer may still run."""
    for name in sorted(os.listdir(place.paths.attempts)):
        path = posixpath.join(place.paths.attempts, name, ADOPTED)
        identity = records.ProcessIdentity.read_or_none(path)
        if identity is None or records.has_ended(identity, os.stat(path).st_mtime):
            continue
        what = "process {}, which attempt {} had adopted".format(identity.pid, int(name))
        if records.is_running(identity):
            raise EndedEarlyError("{}, still runs: stop it, or adopt it again".format(what))
        raise EndedEarlyError(
            "{}, ran on another machine, and nothing proves that it has ended: remove {} when it has".format(what, path)
        )


def keep_fence_of_adopted(place: AttemptPlace) -> None:
    """Wait for the adopted trainer to exit; end it if the epoch passes on.

    Without an adopted trainer, return at once.
    """
    identity = records.ProcessIdentity.read_or_none(posixpath.join(place.files.dir, ADOPTED))
    if identity is None or not records.is_running(identity):
        return
    say("the driver has ended: process {} trains on, and is ended when the run passes on".format(identity.pid))
    trainer = Adopted(identity)
    runs = True
    while runs:
        runs = trainer.poll() is None
        try:
            keep_fence(place)  # also once it has ended: the process of an earlier attempt may have ended it
        except FenceRejectedError as error:
            running = trainer.end()
            say("{}: process {} was ended{}".format(error, identity.pid, ", some processes remain" * bool(running)))
            return
        time.sleep(FENCE_INTERVAL)
