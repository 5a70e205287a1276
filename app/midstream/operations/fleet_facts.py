"""Read what lists show beyond the reports: costs and configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.hosts.host_pool import HostPool
from midstream.listing.fleet_facts import FleetFacts

if TYPE_CHECKING:
    from midstream.costs.cost_report import CostReport

ALL_TIME = 10 * 365 * 86400.0  # seconds before now for which costs are counted


def costs_of(report: CostReport) -> dict[str, float]:
    """Return what each run has cost, where all of its hosts have a price."""
    return {run.run_id: run.cost for run in report.runs if run.cost is not None}


def read_for(facts: FleetFacts, hosts: HostPool, evaluate: Callable[[], object]) -> None:
    """Read all that ``evaluate`` names, for a caller that waits for it."""
    from midstream.costs.collect import collect
    from midstream.watch import resolved_config

    evaluate()
    if facts.costs_named:
        facts.set_costs(costs_of(collect(hosts, ALL_TIME)))
    while facts.read(lambda run: resolved_config.read(hosts, run, run.attempt)):
        evaluate()  # notes what was more than one read takes
