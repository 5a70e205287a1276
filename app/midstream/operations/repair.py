"""Find the damaged records of a run, and write their replacements."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import DamagedError, RemoteError, UsageError
from midstream.suggestions import did_you_mean
from midstream.watch.known_names import read_names

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.repair import FleetEvidence, RepairProposal


@dataclass(frozen=True)
class Repair:
    """Outcome of a proposal.

    ``kept`` is the damaged file's new name; None where nothing was written.
    """

    proposal: RepairProposal
    kept: str | None = None
    refused: str = ""  # why its host has not written it

    def lines(self) -> list[str]:
        """Return the proposal, its evidence and the outcome as text."""
        proposal, kept = self.proposal, self.kept
        lines = [f"{proposal.host}: {proposal.run_id}/{proposal.file}: {proposal.wrong}"]
        lines += [f"    evidence: {line}" for line in proposal.evidence]
        if proposal.missing:
            return [*lines, f"    not determined: {proposal.missing}"]
        verb = "wrote" if kept is not None else "would write"
        if proposal.adopts is not None:
            verb = "signed" if kept is not None else "would sign, once you agree"
        lines.append(f"    {verb}: {content_of(proposal)}")
        return [*lines, f"    the damaged file is kept as {kept}"] if kept else lines


def content_of(proposal: RepairProposal) -> str:
    """Return the new content of a file as text."""
    return json.dumps(proposal.value) if proposal.value is not None else "nothing: the file is moved aside"


def find_damage(hosts: HostPool, run_id: str, on: str = "") -> tuple[list[RepairProposal], list[str]]:
    """Return a proposal for each damaged record, and lines about damaged checkpoints.

    Checkpoints are not repaired.

    Args:
        hosts: Connections to the fleet's hosts.
        run_id: The run.
        on: The host; empty: all.

    Raises:
        UsageError: There is no such host, or no host that answers has the run.
    """
    from midstream.migrate.repair import gather, propose

    fleet = hosts.fleet
    if on and on not in fleet.hosts:
        raise UsageError(f"no host {on!r} in the fleet file", f"hosts: {', '.join(fleet.hosts)}")
    gathered = gather(hosts, run_id)
    _check_known(fleet, gathered, run_id, on)
    damaged = [
        f"{host}: checkpoint {checkpoint.name} is damaged ({checkpoint.damaged}): it is not used and not deleted"
        for host, evidence in gathered.hosts.items()
        for checkpoint in evidence.checkpoints
        if checkpoint.damaged
    ]
    return propose(fleet, gathered, on), damaged


def repair(hosts: HostPool, proposals: Sequence[RepairProposal], *, agreed: bool) -> Iterator[Repair]:
    """Yield the outcome of each proposal; write what the user has ``agreed`` to."""
    from midstream.migrate.repair import apply

    for proposal in proposals:
        kept, refused = None, ""
        if agreed and proposal.determined:
            try:
                kept = apply(hosts, proposal)
            except RemoteError as error:
                if error.kind != "RefusedError":
                    raise
                refused = error.message
        yield Repair(proposal, kept, refused)


def require_determined(proposals: Sequence[RepairProposal]) -> None:
    """Raise DamagedError for records that the evidence does not determine."""
    undetermined = [proposal for proposal in proposals if not proposal.determined]
    if not undetermined:
        return
    first = undetermined[0]
    raise DamagedError(
        f"{len(undetermined)} of {count(len(proposals), 'record')} cannot be determined from the other records; "
        f"{first.host}: {first.file}: {first.missing}",
        "Damaged",
        "nothing was guessed; repair again when the missing host is reachable",
    )


def _check_known(fleet: Fleet, gathered: FleetEvidence, run_id: str, on: str) -> None:
    if on and on in gathered.unreachable:
        raise UsageError(f"{on} does not answer: {gathered.unreachable[on]}", "midstream --status shows it")
    if not gathered.hosts or (on and on not in gathered.hosts):
        seen = {run_id for runs in read_names(fleet.path).values() for run_id in runs}
        hint = did_you_mean(run_id, seen - {run_id}) or "midstream --status lists them"
        if gathered.unreachable:
            hint += f"; not answering: {', '.join(gathered.unreachable)}"
        raise UsageError(f"no run {run_id!r}" + (f" on {on}" if on else ""), hint)
