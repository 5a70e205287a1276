"""`--config RUN`: the configuration of an attempt, or the differences between two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.json_events.result_event import ConfigResult
from midstream.json_events.run_events import ChangeEvent, ConfigEvent
from midstream.operations.fleet_snapshot import find_run
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.watch.snapshot import RunView


def config(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print the newest attempt's configuration.

    With ``--attempts A``, print the one of that attempt; with ``--attempts A,B``, print what differs.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.watch import resolved_config

    hosts = HostPool(fleet)
    try:
        run = find_run(hosts, options.config)
        attempts = _attempts(run, options.attempts)
        texts = [resolved_config.read(hosts, run, attempt) for attempt in attempts]
    finally:
        hosts.close()
    if len(attempts) == 1:
        event = ConfigEvent(run=run.run_id, attempt=attempts[0], config=resolved_config.value_of(texts[0]))
        output.event(event, texts[0].rstrip("\n").split("\n"))
        return Exit.DONE
    changes = resolved_config.changes(*texts)
    for change in changes:
        output.event(ChangeEvent(run=run.run_id, **vars(change)), resolved_config.line(change))
    words = [] if changes else [resolved_config.unchanged(*attempts)]
    output.event(ConfigResult(run=run.run_id, attempts=attempts, changes=len(changes)), words)
    return Exit.DONE


def _attempts(run: RunView, given: str | None) -> list[int]:
    """Parse ``--attempts``.

    Raises:
        UsageError: The run has no such attempt.
    """
    if not run.attempt:
        raise UsageError(f"run {run.run_id} on {run.host} has no attempt yet", "midstream --status shows it")
    words = given.split(",") if given else [str(run.attempt)]
    attempts = sorted({entry.attempt for entry in run.lineage.entries} if run.lineage else {run.attempt})
    if len(words) > 2 or not all(word.isdecimal() and int(word) in attempts for word in words):
        raise UsageError(
            f"--attempts {given}: one or two attempts of {run.run_id}, as 1,2",
            f"known: {', '.join(map(str, attempts))}",
        )
    return [int(word) for word in words]
