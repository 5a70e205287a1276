"""Propose a repair for each damaged record of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.repair.fence_repair import lost_fence
from midstream.migrate.repair.history_repair import lost_lineage, lost_status
from midstream.migrate.repair.owner_repair import adopt, adoption, believed, lost_chain
from midstream.migrate.repair.repair_proposal import RepairProposal, UndeterminedError
from midstream.migrate.repair.run_evidence import FleetEvidence, store_of
from midstream_core import records
from midstream_host.runs import record_repair

LEASE_DURATION = 3600.0  # seconds after which a migration that has not sealed a run has lost its lock
# Later records are derived from earlier ones.
_REPAIR_ORDER = ("fence.json", "ownership.json", "lineage.json", "migration_lock.json", "store.json")
_STATUS = re.compile(r"attempts/([0-9]+)/status-([0-9]+)\.json")
_OF_ATTEMPT = re.compile(r"attempts/([0-9]+)/((?:launch|exit|command|restore|parameter_drift)[-0-9]*)\.json")
_PIN = re.compile(r"pins/(.+)\.json")

Determined = tuple[Mapping[str, Any] | None, list[str]]


def propose(fleet: Fleet, gathered: FleetEvidence, only: str = "") -> list[RepairProposal]:
    """Return the proposals for each host, or for ``only`` that one; the fence first.

    A host that is named may be adopted as the owner, where it is not damaged or no evidence determines its fence.
    """
    proposals: list[RepairProposal] = []
    for host, host_evidence in gathered.hosts.items():
        if only in ("", host):
            proposals += _on_host(gathered, host, host_evidence)
    fence = [proposal for proposal in proposals if proposal.file == "fence.json" and not proposal.determined]
    if only in gathered.hosts and fence == proposals and (adopted := adoption(fleet, gathered, only)) is not None:
        return [adopted]
    return proposals


def apply(hosts: HostPool, proposal: RepairProposal) -> str:
    """Write a determined proposal; return the name that the damaged file was moved to.

    Raises:
        HostError: The host does not answer.
        RemoteError: The host refused to write it.
    """
    if proposal.adopts is not None:
        return adopt(hosts, proposal)
    host = hosts.get(proposal.host)
    value = None if proposal.value is None else dict(proposal.value)
    return host.call(record_repair.put)(root=host.root, run_id=proposal.run_id, file=proposal.file, value=value)


def _on_host(gathered: FleetEvidence, host: str, host_evidence: record_repair.RunEvidence) -> list[RepairProposal]:
    gathered = believed(gathered, host)
    damaged = dict(host_evidence.damaged)
    if host_evidence.fence is None and "fence.json" not in damaged and host_evidence.attempts:
        damaged["fence.json"] = "it is missing, and the run has attempts"
    chain = gathered.judgement.chain
    if (
        chain is not None
        and not host_evidence.ownership
        and host in gathered.judgement.owner_hosts
        and host_evidence.attempts
    ):
        damaged.setdefault("ownership.json", "it is missing, and the run has signed records")
    fence, behind = host_evidence.fence, _behind(gathered, host, host_evidence)
    if behind:
        damaged.setdefault("fence.json", behind)
    proposals: list[RepairProposal] = []
    names = sorted(
        damaged, key=lambda name: (_REPAIR_ORDER.index(name) if name in _REPAIR_ORDER else len(_REPAIR_ORDER), name)
    )
    for name in names:
        try:
            if name in host_evidence.newer:
                raise UndeterminedError("a newer midstream wrote it: update midstream")
            value, evidence = _repair(gathered, host, name, fence)
            proposals.append(RepairProposal(host, gathered.run_id, name, damaged[name], value, tuple(evidence)))
        except UndeterminedError as error:
            proposals.append(RepairProposal(host, gathered.run_id, name, damaged[name], missing=str(error)))
            continue
        if name == "fence.json" and value is not None:
            fence = records.Fence.from_json(dict(value))
        if name == "lineage.json" and value is not None:
            host_evidence = dataclasses.replace(host_evidence, lineage=records.Lineage.from_json(dict(value)))
            gathered = dataclasses.replace(gathered, hosts={**gathered.hosts, host: host_evidence})
    return proposals


def _behind(gathered: FleetEvidence, host: str, host_evidence: record_repair.RunEvidence) -> str:
    """Return in words that the owner's fence is an earlier copy; empty if not."""
    head, fence = gathered.judgement.head, host_evidence.fence
    if head is None or fence is None:
        return ""
    fences = {name: shown.fence for name, shown in gathered.hosts.items() if shown.fence is not None}
    if host in gathered.judgement.owner_hosts and (start := gathered.judgement.lost_start(fences)):
        return f"it is an earlier copy (start {fence.start}), and this machine has seen start {start}"
    if not gathered.judgement.has_earlier_fence(host, fence):
        return ""
    return f"it is an earlier copy (ownership {fence.epoch}), and a signed record says {head.owner} ({head.epoch})"


def _repair(gathered: FleetEvidence, host: str, name: str, fence: records.Fence | None) -> Determined:
    if name == "fence.json":
        repaired, evidence = lost_fence(gathered, host)
        return repaired.to_json(), evidence
    if name == "ownership.json":
        chain, evidence = lost_chain(gathered)
        return chain.to_json(), evidence
    if name == "lineage.json":
        lineage, evidence = lost_lineage(gathered, host, fence)
        return lineage.to_json(), evidence
    if name == "migration_lock.json":
        return _migration_lock(gathered, host)
    if name == "store.json":
        return _store(gathered, host)
    if match := _STATUS.fullmatch(name):
        status, evidence = lost_status(gathered, host, int(match[1]), int(match[2]), fence)
        return status.to_json(), evidence
    if match := _OF_ATTEMPT.fullmatch(name):
        return _of_attempt(gathered, host, int(match[1]), match[2])
    if match := _PIN.fullmatch(name):
        return _pin(gathered, match[1])
    raise UndeterminedError("no other record of the host has its content")


def _migration_lock(gathered: FleetEvidence, host: str) -> Determined:
    """Determine the migration lock: of this machine's open migration, or none.

    The lock of a migration that another machine started expires after its lease.
    """
    host_evidence = gathered.hosts[host]
    open_views = [view for view in gathered.migrations if view.open]
    if len(open_views) == 1:
        plan = open_views[0].plan
        lock = records.MigrationLock(plan.migration, plan.epoch, plan.target, host_evidence.now)
        return lock.to_json(), [f"migration {plan.migration}, started on this machine, is {open_views[0].state}"]
    age = host_evidence.now - host_evidence.changed["migration_lock.json"]
    if open_views or age < LEASE_DURATION:
        raise UndeterminedError(
            "a migration started on another machine may have the run; its lock expires one hour after the last change "
            f"of migration_lock.json, {max(0.0, age):.0f} s ago"
        )
    return None, [
        f"it was written {age:.0f} s ago, and the lock of a migration that has not sealed the run expires before that"
    ]


def _store(gathered: FleetEvidence, host: str) -> Determined:
    url = store_of(gathered.hosts[host].config)
    if not url:
        raise UndeterminedError("run.yaml names no bucket (trainer.checkpointer.base_path), and store.json does")
    return records.Store(url).to_json(), [f"run.yaml: trainer.checkpointer.base_path is {url}"]


def _of_attempt(gathered: FleetEvidence, host: str, number: int, what: str) -> Determined:
    """Determine a record of an attempt; after its end only an open migration needs it."""
    attempt = next((candidate for candidate in gathered.hosts[host].attempts if candidate.attempt == number), None)
    if attempt is None:
        raise UndeterminedError(f"attempt {number} has no other files")
    if attempt.running:
        raise UndeterminedError(f"attempt {number} may still need it: {attempt.running}")
    migration = next((view.migration for view in gathered.migrations if view.open), "")
    if migration and what in ("command", "restore", "parameter_drift"):
        raise UndeterminedError(f"migration {migration} is open and may need it: finish it or roll it back first")
    if what.startswith("launch") and not any(process.status for process in attempt.processes):
        raise UndeterminedError("no status identifies the process")
    status = next((process.status for process in attempt.processes if process.status is not None), None)
    end = "no process of it runs on this host" if status is None else f"{status.state} at step {status.step}"
    unused = f"{what}.json of an ended attempt is used only as evidence"
    return None, [f"attempt {number} has ended: {end}", unused]


def _pin(gathered: FleetEvidence, migration: str) -> Determined:
    view = next((view for view in gathered.migrations if view.migration == migration), None)
    if view is None:
        raise UndeterminedError(
            f"the checkpoint that it pins is recorded on the machine that started migration {migration}"
        )
    if view.open:
        raise UndeterminedError(f"migration {migration} is {view.state}: finish it or roll it back first")
    return None, [f"migration {migration} is {view.state}: it pins no checkpoint any more"]
