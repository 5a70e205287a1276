"""Mode ``--log RUN --follow``: print a log's last lines, then new ones to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.errors import Exit, RemoteError
from midstream.hosts.reconnect import FOLLOWED_LOG, Reconnect
from midstream.json_events.result_event import FollowResult
from midstream.json_events.run_events import LogEvent
from midstream.watch.host_log import LogFollower
from midstream_host.runs import run_state

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.output import Output
    from midstream.watch.snapshot import RunView

LAST_LINES = 20  # with which it begins
POLL_INTERVAL = 1.0  # seconds between two reads


def follow_log(
    host: Host,
    path: str,
    run: RunView,
    output: Output,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Print the log at ``path`` of the run's newest attempt until it ends.

    Returns the exit code. A host that does not answer is named once and tried again.

    Args:
        host: Host of the process.
        path: Its log.
        run: The run.
        output: Gets the lines.
        wait: Called with seconds between two reads.

    Raises:
        RemoteError: The log cannot be read.
    """
    follower, unreachable = LogFollower(host, path, LAST_LINES), False
    reconnect = Reconnect(FOLLOWED_LOG)
    while True:
        try:
            # Before the lines: those of an attempt that has ended are complete.
            found = host.call(run_state.status)(root=host.root, run_id=run.run_id, attempt=run.attempt)
            for line in follower.new_lines(complete=not found.running):
                event = LogEvent(run=run.run_id, attempt=run.attempt, line=line)
                output.event(event, [line.removesuffix("\r")])
        except RemoteError:
            raise
        except FOLLOWED_LOG.lost as error:
            if not unreachable:
                output.message(f"midstream: {error.message}; trying again until it answers")
            unreachable = True
            wait(reconnect.delay())
            continue
        unreachable = False
        if not found.running:
            break
        wait(POLL_INTERVAL)
    state, step = (found.status.state, found.status.step) if found.status is not None else (None, None)
    output.event(FollowResult(run=run.run_id, attempt=run.attempt, state=state, step=step))
    how = f"{state} at step {step}" if state is not None else "it left no status"
    output.message(f"midstream: attempt {run.attempt} of {run.run_id} has ended: {how}")
    return Exit.DONE
