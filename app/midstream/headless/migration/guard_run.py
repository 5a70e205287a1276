"""`--guard RUN --to T1,T2`: migrate a run when its host is preempted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from midstream.counts import count
from midstream.errors import Exit, UsageError
from midstream.fleet.quantities import parse_duration
from midstream.headless.fleet_snapshot import unknown_run
from midstream.json_events.notifications import NOTIFICATIONS
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

FIRST_SNAPSHOT_TIMEOUT = 15.0  # seconds


def guard(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Guard a run until it ends (0) or needs the user (1).

    Ctrl-C ends the guard and changes nothing.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.failover.guard import Guard
    from midstream.migrate.failover.guard_plan import check_consent
    from midstream.migrate.notifications.notify import notify_all
    from midstream.watch.watcher import Watcher

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

    def report(event: dict[str, Any]) -> None:
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
            lambda at: bool(at.copies(options.guard)) and not guard.owner(at), timeout=FIRST_SNAPSHOT_TIMEOUT
        )
        found = reached or watch.snapshot()
        copies = found.copies(options.guard)
        if not copies:
            raise unknown_run(options.guard, found)
        where = guard.owner(found) or copies[0].host
        if not options.yes:
            check_consent(fleet, hosts, copies[0], targets)
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
