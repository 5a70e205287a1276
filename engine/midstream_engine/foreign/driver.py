"""Driver of another trainer's run: the engine's place in an attempt.

It uses the standard library only, Python 3.8.

    python -m midstream_engine.foreign.driver --python PYTHON [--nodes N --devices N --node I --master HOST --port PORT]

It starts the trainer of ``run.yaml`` with the environment of the launcher (``MIDSTREAM_ROOT``, ``RUN_ID``,
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

from midstream_engine import records
from midstream_engine.checkpoint.save_fence import FenceRejectedError, FenceUnreadableError
from midstream_engine.foreign.attempt.attempt_group import LEFT_AFTER
from midstream_engine.foreign.attempt.attempt_place import AttemptPlace, EndedEarlyError
from midstream_engine.foreign.attempt.driven_attempt import DrivenAttempt
from midstream_engine.foreign.run_file import World
from midstream_engine.foreign.trainer_setup import PORT, Node, read_run_file
from midstream_engine.foreign.work_directory import MismatchError


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m midstream_engine.foreign.driver", allow_abbrev=False)
    parser.add_argument("--python", required=True, help="interpreter of the trainer")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--per-device", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=0)
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
    world = World(options.nodes, options.devices, options.per_device, options.accumulation)
    # On one node no other process has to find the port, and two runs of one machine need two.
    port = options.port if options.nodes > 1 else _free_port()
    attempt = DrivenAttempt(place, world, Node(options.node, options.master, port), options.python, options.left_after)
    try:
        return attempt.run(read_run_file(paths), options.attach, options.attach_started)
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
