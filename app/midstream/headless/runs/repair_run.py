"""Mode `--repair`: show damaged records and replacements; with --yes, write them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import DamagedError, Exit, RemoteError, UsageError
from midstream.json_events.result_event import RepairResult
from midstream.json_events.run_events import RepairEvent, RepairingEvent
from midstream.output import Output
from midstream.suggestions import did_you_mean
from midstream.watch.known_names import read_names

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.repair import FleetEvidence, RepairProposal


def repair(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Show the damaged records of a run.

    With ``--yes``, write the replacements that are determined.
    """
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.repair import apply, gather, propose

    if options.on and options.on not in fleet.hosts:
        raise UsageError(f"no host {options.on!r} in the fleet file", f"hosts: {', '.join(fleet.hosts)}")
    hosts = HostPool(fleet)
    try:
        gathered = gather(fleet, hosts, options.repair)
        _check_known(fleet, gathered, options)
        proposals = propose(fleet, gathered, options.on or "")
        for proposal in proposals if options.yes else ():
            _announce(proposal, output)
        written = 0
        for proposal in proposals:
            kept = None
            if options.yes and proposal.determined:
                try:
                    kept = apply(hosts, proposal)
                except RemoteError as error:
                    if error.kind != "RefusedError":
                        raise
                    output.message(f"midstream: {error.message}")
            written += kept is not None
            _show(proposal, kept, output)
    finally:
        hosts.close()
    for line in _checkpoints(gathered):
        output.message(f"midstream: {line}")
    return _end(options, proposals, written, output)


def _check_known(fleet: Fleet, gathered: FleetEvidence, options: argparse.Namespace) -> None:
    where = f" on {options.on}" if options.on else ""
    if options.on and options.on in gathered.unreachable:
        raise UsageError(
            f"{options.on} does not answer: {gathered.unreachable[options.on]}", "midstream --status shows it"
        )
    if not gathered.hosts or (options.on and options.on not in gathered.hosts):
        seen = {run_id for runs in read_names(fleet.path).values() for run_id in runs}
        hint = did_you_mean(options.repair, seen - {options.repair}) or "midstream --status lists them"
        if gathered.unreachable:
            hint += f"; not answering: {', '.join(gathered.unreachable)}"
        raise UsageError(f"no run {options.repair!r}{where}", hint)


def _announce(proposal: RepairProposal, output: Output) -> None:
    """Print what is about to be written: ``--yes`` agrees to that."""
    if not proposal.determined:
        return
    fields = {key: getattr(proposal, key) for key in ("host", "run_id", "file", "wrong", "value")}
    what = "signing" if proposal.adopts is not None else "writing"
    new = json.dumps(proposal.value) if proposal.value is not None else "nothing: the file is moved aside"
    line = f"{what} {proposal.run_id}/{proposal.file} on {proposal.host} ({proposal.wrong}): {new}"
    output.event(RepairingEvent(**fields), [line, *(f"    evidence: {each}" for each in proposal.evidence)])


def _show(proposal: RepairProposal, kept: str | None, output: Output) -> None:
    event = RepairEvent(**asdict(proposal), written=kept is not None, kept=kept or "")
    lines = [f"{proposal.host}: {proposal.run_id}/{proposal.file}: {proposal.wrong}"]
    lines += [f"    evidence: {line}" for line in proposal.evidence]
    if proposal.missing:
        lines.append(f"    not determined: {proposal.missing}")
    else:
        verb = "wrote" if kept is not None else "would write"
        if proposal.adopts is not None:
            verb = "signed" if kept is not None else "would sign, once you agree"
        what = json.dumps(proposal.value) if proposal.value is not None else "nothing: the file is moved aside"
        lines.append(f"    {verb}: {what}")
        if kept:
            lines.append(f"    the damaged file is kept as {kept}")
    output.event(event, lines)


def _checkpoints(gathered: FleetEvidence) -> list[str]:
    """Return a line for each damaged checkpoint. Checkpoints are not repaired."""
    return [
        f"{host}: checkpoint {checkpoint.name} is damaged ({checkpoint.damaged}): it is not used and not deleted"
        for host, found in gathered.hosts.items()
        for checkpoint in found.checkpoints
        if checkpoint.damaged
    ]


def _end(options: argparse.Namespace, proposals: list[RepairProposal], written: int, output: Output) -> int:
    undetermined = [proposal for proposal in proposals if not proposal.determined]
    if undetermined:
        first = undetermined[0]
        raise DamagedError(
            f"{len(undetermined)} of {count(len(proposals), 'record')} cannot be determined from the other records; "
            f"{first.host}: {first.file}: {first.missing}",
            "Damaged",
            "nothing was guessed; repair again when the missing host is reachable",
        )
    output.event(
        RepairResult(run=options.repair, damaged=len(proposals), written=written),
        [] if proposals else f"no record of {options.repair} is damaged",
    )
    if proposals and not options.yes:
        on = f" --on {options.on}" if options.on else ""
        output.message(f"midstream: nothing was written; midstream --repair {options.repair}{on} --yes writes it")
    return Exit.DONE
