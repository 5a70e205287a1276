"""`--guard RUN --to T1,T2`: watch over a run, and move it when its machine is certainly gone or going."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, UsageError
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

FIRST_LOOK = 15.0  # seconds


def guard(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Until the run ends (0), needs a person (1) or is let go with Ctrl-C, which touches nothing."""
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.failover.guard import Guard
    from midstream.migrate.failover.notify import notify
    from midstream.watch.watcher import Watch

    targets = [name.strip() for name in options.to.split(",") if name.strip()]
    for name in targets:
        if name not in fleet.absent:  # one that is not there is passed over
            fleet.target(name)  # a name that is wrong is said now, not when it is needed
    if options.tries < 1:
        raise UsageError(f"--tries is {options.tries}", "how many moves the guard may begin: 1 or more")

    def tell(event: dict[str, Any]) -> None:
        what = event.get("message") or f"moving {event['run']} to {event['to']}: migration {event['migration']}"
        output.value(event, f"{event['kind']}: {what}")
        if "migration" not in event:  # its own process tells of a migration
            notify(fleet.on_event, event)

    hosts = Hosts(fleet)
    watch = Watch(fleet, hosts)
    watch.start()
    try:
        sentry = Guard(fleet, hosts, watch, options.guard, targets, options.tries, tell, options.yes)
        seen = watch.wait_for(lambda at: bool(at.copies(options.guard)) and not sentry.owner(at), timeout=FIRST_LOOK)
        found = seen or watch.snapshot()
        copies = found.copies(options.guard)
        if not copies:
            known = sorted({run.run_id for run in found.runs})
            hint = f"known: {', '.join(known)}" if known else "no host that answers holds a run"
            raise UsageError(f"no run {options.guard!r}", hint)
        where = sentry.owner(found) or copies[0].host
        if not options.yes:
            sentry.check_consent(copies[0])
        output.talk(f"midstream: guarding {options.guard} on {where}; it may be moved {options.tries} times")
        return sentry.run()
    except KeyboardInterrupt:
        output.talk("")  # after the terminal's ^C
        output.talk("midstream: the run is not guarded any more; nothing else has changed")
        return Exit.INTERRUPTED
    finally:
        watch.stop()
        hosts.close()
