"""Mode `--repair`: show damaged records and replacements; with --yes, write them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.json_events.result_event import RepairResult
from midstream.json_events.run_events import RepairEvent, RepairingEvent
from midstream.operations import repair as operation
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.repair import RepairProposal


def repair(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Show the damaged records of a run.

    With ``--yes``, write the replacements that are determined.
    """
    from midstream.hosts.host_pool import HostPool

    hosts, written = HostPool(fleet), 0
    try:
        proposals, damaged = operation.find_damage(hosts, options.repair, options.on or "")
        for proposal in proposals:
            if options.yes and proposal.determined:
                _announce(proposal, output)
        for done in operation.repair(hosts, proposals, agreed=options.yes):
            if done.refused:
                output.message(f"midstream: {done.refused}")
            written += done.kept is not None
            event = RepairEvent(**asdict(done.proposal), written=done.kept is not None, kept=done.kept or "")
            output.event(event, done.lines())
    finally:
        hosts.close()
    for line in damaged:
        output.message(f"midstream: {line}")
    operation.require_determined(proposals)
    result = RepairResult(run=options.repair, damaged=len(proposals), written=written)
    output.event(result, [] if proposals else f"no record of {options.repair} is damaged")
    if proposals and not options.yes:
        on = f" --on {options.on}" if options.on else ""
        output.message(f"midstream: nothing was written; midstream --repair {options.repair}{on} --yes writes it")
    return Exit.DONE


def _announce(proposal: RepairProposal, output: Output) -> None:
    """Print what is about to be written: ``--yes`` agrees to that."""
    fields = {key: getattr(proposal, key) for key in ("host", "run_id", "file", "wrong", "value")}
    what = "signing" if proposal.adopts is not None else "writing"
    file = f"{proposal.run_id}/{proposal.file} on {proposal.host} ({proposal.wrong})"
    evidence = [f"    evidence: {line}" for line in proposal.evidence]
    output.event(RepairingEvent(**fields), [f"{what} {file}: {operation.content_of(proposal)}", *evidence])
