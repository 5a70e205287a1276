"""`--guard RUN --to T1,T2`: migrate a run when its host is preempted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.quantities import parse_duration
from midstream.headless.confirmation import can_ask, confirmed
from midstream.json_events.notifications import NOTIFICATIONS
from midstream.operations.fleet_snapshot import unproven_run
from midstream.output import Output
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.failover.guard_consent import GuardConsent
    from midstream.watch.snapshot import RunView, Snapshot


def guard(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Guard a run until it ends (0) or needs the user (1).

    Ctrl-C ends the guard and changes nothing.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.failover.guard import Guard
    from midstream.migrate.notify import notify_all
    from midstream.watch.watcher import SNAPSHOT_TIMEOUT, Watcher

    targets = [*dict.fromkeys(name.strip() for name in options.to.split(",") if name.strip())]
    if not targets:
        raise UsageError(
            f"--to {options.to!r} names no target", "targets that may take the run: --to TARGET[,TARGET...]"
        )
    for name in targets:
        if name not in fleet.unavailable:  # an unavailable target is skipped later
            fleet.target(name)  # reports a wrong name now, not at a preemption
    if options.tries < 1:
        raise UsageError(f"--tries is {options.tries}", "number of migrations that the guard may start: 1 or more")

    try:
        lead = None if options.guard_lead is None else parse_duration(options.guard_lead)
    except UsageError as error:
        raise UsageError(f"--guard-lead: {error.message}", error.hint) from error

    def report(event: dict[str, JsonValue]) -> None:
        what = event.get("message") or f"migrating {event['run']} to {event['to']}: migration {event['migration']}"
        output.value(event, f"{event['kind']}: {what}")
        if "migration" not in event and event["kind"] in NOTIFICATIONS:  # a migration notifies by its own process
            notify_all(fleet, event)

    hosts = HostPool(fleet)
    watch = Watcher(fleet, hosts)
    watch.start()
    try:
        guard = Guard(fleet, hosts, watch, options.guard, targets, options.tries, report, options.yes, lead)
        reached = watch.wait_for(
            lambda at: bool(at.believed(options.guard)) and not guard.owner(at), timeout=SNAPSHOT_TIMEOUT
        )
        found = reached or watch.snapshot()
        judgement = found.judgement(options.guard)
        if judgement.problem:
            raise MidstreamError(judgement.problem, f"midstream --repair {options.guard} shows them", Exit.REFUSED)
        copies = found.believed(options.guard)
        if not copies:
            raise unproven_run(options.guard, found)
        where = guard.owner(found) or copies[0].host
        guard.consent = _consent(hosts, found, copies[0], targets, options, output)
        output.message(f"midstream: guarding {options.guard} on {where}; up to {count(options.tries, 'migration')}")
        if not guard.has_target(copies[0]):
            output.message(f"midstream: --to names no other target than {where}: the guard can only notify")
        return guard.run()
    except KeyboardInterrupt:
        output.message("")  # after the terminal's ^C
        output.message("midstream: the guard has ended; nothing else has changed")
        return Exit.INTERRUPTED
    finally:
        watch.stop()
        hosts.close()


def _consent(
    hosts: HostPool,
    snapshot: Snapshot,
    run: RunView,
    targets: Sequence[str],
    options: argparse.Namespace,
    output: Output,
) -> GuardConsent:
    """Show what the guard needs consent to, ask for it, and record it.

    Raises:
        MidstreamError: The user did not agree.
    """
    from midstream.migrate.failover import guard_consent

    proposal = guard_consent.propose(hosts, snapshot, run, targets)
    agreed = options.yes
    if proposal.lines and (agreed or can_ask(output)):
        for line in proposal.lines:
            output.message(f"midstream: {'agreed: ' if agreed else ''}{line}")
        agreed = agreed or confirmed(f"Guard {run.run_id} on {run.host}?", output)
    guard_consent.require(proposal, agreed)
    return guard_consent.accept(hosts, snapshot, proposal)
