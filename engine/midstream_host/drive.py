"""Driver of another trainer's run: the engine's place in an attempt.

The driver uses the standard library only, Python 3.8.

    python -m midstream_host.drive --python PYTHON [--nodes N --devices N --processes N --node I ...]

The driver starts the trainer of ``run.yaml`` with the environment of the launcher (``MIDSTREAM_ROOT``, ``RUN_ID``,
``MIDSTREAM_ATTEMPT``, ``MIDSTREAM_EPOCH``, ``MIDSTREAM_TARGET``), writes the status, the metrics and the
checkpoints of the attempt as an engine does, and obeys its commands and signals. The fence is enforced
here, because the trainer cannot read it: before the epoch changes hands no process of the trainer runs.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import List, Optional

from midstream_core import records
from midstream_core.attempt.errors import AlreadyRunningError
from midstream_core.attempt.save_fence import FenceRejectedError, FenceUnreadableError
from midstream_host.driver.attempt_group import LEFT_AFTER
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError, say
from midstream_host.driver.driven_attempt import DrivenAttempt
from midstream_host.driver.run_file import World
from midstream_host.driver.trainer_setup import PORT, Node, read_run_file
from midstream_host.driver.work_directory import MismatchError


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m midstream_host.drive", allow_abbrev=False)
    parser.add_argument("--python", required=True, help="interpreter of the trainer")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--per-device", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=0)
    parser.add_argument("--processes", type=int, default=0, help="of each node; 0: one for each device")
    parser.add_argument("--limit-devices", action="store_true", help="the trainer sees the first --devices alone")
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--attach", type=int, default=0, metavar="PID", help="a launcher that runs already")
    parser.add_argument("--attach-started", type=int, default=0, metavar="TICKS",
                        help="its start time since the boot: another process may have its number by now")  # fmt: skip
    parser.add_argument("--left-after", type=float, default=LEFT_AFTER, metavar="SECONDS",
                        help="after the end of node 0, in which a trainer ends by itself")  # fmt: skip
    options = parser.parse_args(arguments)
    environment = os.environ
    paths = records.RunPaths(environment["MIDSTREAM_ROOT"], records.check_run_id(environment["RUN_ID"]))
    place = AttemptPlace(
        paths=paths,
        number=int(environment["MIDSTREAM_ATTEMPT"]),
        epoch=int(environment.get("MIDSTREAM_EPOCH", "1")),
        target=environment.get("MIDSTREAM_TARGET", ""),
        host=environment.get("MIDSTREAM_HOST", ""),
    )
    world = World(
        options.nodes,
        options.devices,
        options.per_device,
        options.accumulation,
        options.processes,
        options.limit_devices,
    )
    # On one node no other process has to find the port, and two runs of one machine need two.
    port = options.port if options.nodes > 1 else _free_port()
    attempt = DrivenAttempt(place, world, Node(options.node, options.master, port), options.python, options.left_after)
    try:
        return attempt.run(read_run_file(paths), options.attach, options.attach_started)
    except AlreadyRunningError as error:
        say(str(error))
        return records.EXIT_FAILED
    except FenceRejectedError as error:
        return attempt.fail(str(error), records.EXIT_FENCED)
    except (records.RecordError, MismatchError, EndedEarlyError, FenceUnreadableError) as error:
        return attempt.fail(str(error), records.EXIT_FAILED)
    except OSError as error:
        return attempt.fail("{}: {}".format(error.filename or "", error.strerror or error), records.EXIT_FAILED)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
