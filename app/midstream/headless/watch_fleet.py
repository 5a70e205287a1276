"""`--watch [RUN,...]`: report what happens to runs and hosts until Ctrl-C."""

from __future__ import annotations

import argparse
import queue
from concurrent.futures import ThreadPoolExecutor

from midstream.errors import Exit, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.operations.alerts import Alert, Alerts, send
from midstream.output import Output
from midstream.suggestions import did_you_mean
from midstream.watch.snapshot import LIVE, Snapshot
from midstream.watch.watcher import SNAPSHOT_TIMEOUT, Watcher

WAIT = 1.0  # seconds; Ctrl-C is noticed between two waits


def watch(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Report alerts until Ctrl-C.

    Raises:
        UsageError: All hosts answer, and a run that is named is on none.
    """
    only = {name.strip() for name in options.watch.split(",") if name.strip()}
    hosts, changed = HostPool(fleet), queue.SimpleQueue[Snapshot]()
    watcher = Watcher(fleet, hosts)
    watcher.start()
    sending = ThreadPoolExecutor(4, thread_name_prefix="notify")
    try:
        first = watcher.wait_for(lambda at: all(host.link == LIVE for host in at.hosts), timeout=SNAPSHOT_TIMEOUT)
        if first is not None:
            _check_names(only, first)
        alerts = Alerts()
        unsubscribe = watcher.subscribe(changed.put)
        output.message(f"midstream: watching {', '.join(sorted(only)) or 'all runs and hosts'} until Ctrl-C")
        latest = first or watcher.snapshot()
        try:
            while True:
                for alert in alerts.of(latest):
                    if not only or alert.run in only:
                        report(fleet, alert, output, sending)
                latest = _newest(changed, watcher)
        finally:
            unsubscribe()
    except KeyboardInterrupt:
        output.message("")  # after the terminal's ^C
        output.message("midstream: the watch has ended; nothing was changed")
        return Exit.INTERRUPTED
    finally:
        sending.shutdown()
        watcher.stop()
        hosts.close()


def report(fleet: Fleet, alert: Alert, output: Output, sending: ThreadPoolExecutor) -> None:
    """Print an alert, and send it to the receivers of the fleet file."""
    sending.submit(send, fleet, alert)  # first: Ctrl-C may come right after the line
    output.event(alert.event(), f"{alert.kind}: {alert.message}")


def _newest(changed: queue.SimpleQueue[Snapshot], watcher: Watcher) -> Snapshot:
    """Return the newest snapshot, after a change or `WAIT` seconds."""
    try:
        latest = changed.get(timeout=WAIT)
        while not changed.empty():
            latest = changed.get()
    except queue.Empty:
        return watcher.snapshot()
    return latest


def _check_names(only: set[str], snapshot: Snapshot) -> None:
    run_ids = sorted({run.run_id for run in snapshot.runs})
    for name in sorted(only - set(run_ids)):
        raise UsageError(f"no run {name!r}", did_you_mean(name, run_ids) or "midstream --status lists the runs")
