"""`--guard RUN --to T1,T2`: migrate a run when its host is preempted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit, UsageError
from midstream.fleet.quantities import parse_duration
from midstream.headless.confirmation import can_ask, confirmed
from midstream.operations import guard as operation
from midstream.output import Output
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.watch.snapshot import RunView


def guard(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Guard a run until it ends (0) or needs the user (1).

    Ctrl-C ends the guard and changes nothing.
    """
    from midstream.hosts.host_pool import HostPool

    request = _request_of(options)

    def report(event: dict[str, JsonValue]) -> None:
        what = event.get("message") or f"migrating {event['run']} to {event['to']}: migration {event['migration']}"
        output.value(event, f"{event['kind']}: {what}")

    def begun(host: str, has_target: bool) -> None:
        output.message(f"midstream: guarding {request.run_id} on {host}; up to {count(request.tries, 'migration')}")
        if not has_target:
            output.message(f"midstream: --to names no other target than {host}: the guard can only notify")

    def agree(lines: Sequence[str], run: RunView) -> bool:
        if not request.agreed and not can_ask(output):
            return False
        for line in lines:
            output.message(f"midstream: {'agreed: ' if request.agreed else ''}{line}")
        return request.agreed or confirmed(f"Guard {run.run_id} on {run.host}?", output)

    hosts = HostPool(fleet)
    try:
        return operation.guard(hosts, request, operation.GuardFace(report, begun, agree))
    except KeyboardInterrupt:
        output.message("")  # after the terminal's ^C
        output.message("midstream: the guard has ended; nothing else has changed")
        return Exit.INTERRUPTED
    finally:
        hosts.close()


def _request_of(options: argparse.Namespace) -> operation.GuardRequest:
    """Return what the flags request.

    Raises:
        UsageError: A flag is invalid.
    """
    targets = tuple(dict.fromkeys(name.strip() for name in options.to.split(",") if name.strip()))
    if not targets:
        raise UsageError(
            f"--to {options.to!r} names no target", "targets that may take the run: --to TARGET[,TARGET...]"
        )
    if options.tries < 1:
        raise UsageError(f"--tries is {options.tries}", "number of migrations that the guard may start: 1 or more")
    try:
        lead = None if options.guard_lead is None else parse_duration(options.guard_lead)
    except UsageError as error:
        raise UsageError(f"--guard-lead: {error.message}", error.hint) from error
    return operation.GuardRequest(options.guard, targets, options.tries, options.yes, lead)
