"""Lock on the directory that a trainer writes to.

Two runs there would mix their checkpoints and metrics. A run in a working directory of midstream's own has it alone.
One whose run file names a ``directory:``, or that was adopted, may have it with another run, which was started or
adopted there under another name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
from typing import Optional

from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError, say
from midstream_host.driver.trainer_setup import TrainerSetup

MAX_PATH = 4096  # bytes of a run's directory


def lock_output(place: AttemptPlace, setup: TrainerSetup) -> Optional[int]:
    """Lock a trainer's output for this process.

    Returns the descriptor that has the lock. None where the same run has it already, as the driver of an earlier
    attempt that is about to end, or where there are no locks: the directory beside the output is read-only, or on a
    shared disk without them (Lustre, NFS).

    Raises:
        EndedEarlyError: Another run has it.
    """
    inside = setup.out == posixpath.normpath(setup.directory)
    parent = setup.out if inside else posixpath.dirname(setup.out)
    path = posixpath.join(parent, ".{}.midstream".format(posixpath.basename(setup.out)))
    descriptor = -1
    try:
        os.makedirs(parent, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, MAX_PATH).decode("utf-8", "replace").strip()
        os.close(descriptor)
        if owner == place.paths.dir:
            return None
        name = "run {}".format(ascii(posixpath.basename(owner))[1:-1]) if owner else "another run"
        raise EndedEarlyError("{}: {} trains there already".format(setup.out, name)) from None
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        say("{}: whether another run writes there is not known: {}".format(setup.out, error.strerror))
        return None
    with contextlib.suppress(OSError):  # the disk is full: the lock has no name
        os.ftruncate(descriptor, 0)
        os.write(descriptor, place.paths.dir.encode() + b"\n")
    return descriptor
