"""`--serve-metrics PORT`: watch the fleet, and serve its metrics to Prometheus."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.json_events.fleet_events import ServingEvent
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

LOOPBACK = "127.0.0.1"
COSTS_INTERVAL = 60.0  # seconds between two readings of what runs have cost


def serve_metrics(
    fleet: Fleet, options: argparse.Namespace, output: Output, stop: threading.Event | None = None
) -> int:
    """Serve until Ctrl-C, or until ``stop`` is set."""
    from prometheus_client import CollectorRegistry, start_http_server

    from midstream.costs.collect import collect
    from midstream.hosts.host_pool import HostPool
    from midstream.listing.fleet_facts import FleetFacts
    from midstream.listing.prometheus_metrics import CachedMigrations, FleetMetrics
    from midstream.migrate.journal.migration_directory import list_migrations
    from midstream.operations.fleet_facts import ALL_TIME, costs_of
    from midstream.watch.watcher import Watcher

    text, address = options.serve_metrics, options.bind or LOOPBACK
    port = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1
    if not 0 <= port < 65536:
        raise UsageError(f"--serve-metrics {text!r}", "a port from 1 to 65535; 0: any free one")
    hosts = HostPool(fleet)
    watch = Watcher(fleet, hosts)
    registry, facts, stop = CollectorRegistry(), FleetFacts(), stop or threading.Event()
    try:
        registry.register(FleetMetrics(watch.snapshot, CachedMigrations(lambda: list_migrations(fleet)), facts))
        try:
            server, thread = start_http_server(port, address, registry)
        except OSError as error:
            raise UsageError(
                f"{address} port {port} cannot be served: {error.strerror or error}",
                "another port, or an address of this machine: --bind 127.0.0.1",
            ) from error
        watch.start()
        try:
            where = f"http://{address}:{server.server_port}/metrics"
            output.event(ServingEvent(url=where), f"serving {where} until Ctrl-C")
            while True:
                facts.set_costs(costs_of(collect(hosts, ALL_TIME)))
                if stop.wait(COSTS_INTERVAL):
                    break
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    except KeyboardInterrupt:
        output.message("")  # after the terminal's ^C
        return Exit.INTERRUPTED
    finally:
        watch.stop()
        hosts.close()
    return Exit.DONE
