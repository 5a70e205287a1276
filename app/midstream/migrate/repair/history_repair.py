"""Determine lineage and statuses of a host from the evidence of the attempts."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.migrate.repair.repair_proposal import UndeterminedError
from midstream.migrate.repair.run_evidence import FleetEvidence
from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.runs.record_repair import AttemptEvidence


def lost_lineage(gathered: FleetEvidence, host: str, fence: records.Fence | None) -> tuple[records.Lineage, list[str]]:
    """Return the lineage of other hosts, with the attempts that only this host has.

    Raises:
        UndeterminedError: The evidence does not determine it.
    """
    lineage = records.Lineage(gathered.run_id)
    evidence: list[str] = []
    for name, other in gathered.lineages().items():
        for entry in other.entries:
            listed_entry = next(
                (listed_entry for listed_entry in lineage.entries if listed_entry.attempt == entry.attempt), None
            )
            if listed_entry is not None and _beginning(listed_entry) != _beginning(entry):
                raise UndeterminedError(f"the lineages of other hosts differ in attempt {entry.attempt}")
            if listed_entry is None or listed_entry.last_step is None:
                lineage = lineage.with_entry(entry)
        evidence.append(f"{name}: lineage.json has attempts {', '.join(str(entry.attempt) for entry in other.entries)}")
    listed = {entry.attempt for entry in lineage.entries}
    chain = gathered.judgement.chain
    owners = {record.epoch: record.owner for record in chain.entries} if chain is not None else {}
    for attempt in gathered.hosts[host].attempts:
        number = attempt.attempt
        checkpoints = [checkpoint for checkpoint in gathered.hosts[host].checkpoints if checkpoint.attempt == number]
        if number in listed:
            continue
        if attempt.last_row is None and not checkpoints:
            evidence.append(f"attempt {number} has done no step: it is left out")
            continue
        entry = _entry(attempt, fence, owners)
        lineage = lineage.with_entry(entry)
        begun = f"restored {entry.checkpoint}" if entry.checkpoint else "began at step 0"
        ended = "runs" if entry.last_step is None else f"ended at step {entry.last_step}"
        evidence.append(
            f"attempt {number}: its status, restore.json and metrics: ownership {entry.epoch}, {begun}, {ended}"
        )
    if not lineage.attempts:
        raise UndeterminedError("no attempt has done a step, and no other host has a lineage")
    return lineage, evidence


def _beginning(entry: records.LineageEntry) -> tuple[JsonValue, ...]:
    return entry.epoch, entry.target, entry.first_step, entry.checkpoint, entry.root_digest


def _entry(attempt: AttemptEvidence, fence: records.Fence | None, owners: Mapping[int, str]) -> records.LineageEntry:
    """Return the entry of an attempt by its own records.

    ``owners``: the signed ones, by epoch.
    """
    number = attempt.attempt
    status = next((process.status for process in attempt.processes if process.status is not None), None)
    if status is None:
        raise UndeterminedError(
            f"attempt {number} has no status that can be read: its ownership and devices are not known"
        )
    if fence is None:
        raise UndeterminedError("the fence, which has the owner of the attempts, is not known: repair it first")
    target = fence.owner if status.epoch == fence.epoch else owners.get(status.epoch, "")
    if not target:
        raise UndeterminedError(f"attempt {number} is of ownership {status.epoch}: its target is not known")
    restore = attempt.restore
    if restore is None and attempt.first_row not in (0, None):
        raise UndeterminedError(
            f"attempt {number} began at step {attempt.first_row}, and no restore.json has its checkpoint"
        )
    devices = status.devices
    return records.LineageEntry(
        attempt=number,
        epoch=status.epoch,
        target=target,
        devices=len(devices),
        device_kind=str(devices[0].get("kind", "")) if devices else "",
        first_step=restore.step if restore else 0,
        last_step=status.step if status.state in records.ENDED else None,
        checkpoint=restore.checkpoint if restore else None,
        root_digest=restore.root_digest if restore else None,
        migration=attempt.command.migration if attempt.command else "",
    )


def lost_status(
    gathered: FleetEvidence, host: str, number: int, process: int, fence: records.Fence | None
) -> tuple[records.Status, list[str]]:
    """Return the last status of an exited process; a running one writes its own again.

    Args:
        gathered: Evidence of the run.
        host: Name of the host.
        number: Number of the attempt.
        process: Number of the process.
        fence: The run's fence; None: unknown.

    Raises:
        UndeterminedError: The process may run, or the evidence does not determine it.
    """
    host_evidence = gathered.hosts[host]
    attempt = next((candidate for candidate in host_evidence.attempts if candidate.attempt == number), None)
    process_evidence = (
        next((candidate for candidate in attempt.processes if candidate.process == process), None) if attempt else None
    )
    if attempt is None or process_evidence is None:
        raise UndeterminedError(f"attempt {number} has no other file of process {process}")
    if attempt.running:
        raise UndeterminedError(f"{attempt.running}: a running engine writes its status again within seconds")
    if process_evidence.launched is None:
        where_it_ran = _status_where_it_ran(gathered, host, number, process)
        if where_it_ran is not None:
            return where_it_ran
        raise UndeterminedError("launch.json, which identifies the process, cannot be read")
    launched = process_evidence.launched
    readable = "lineage.json" not in host_evidence.damaged
    epoch, evidence = _epoch(gathered, attempt, fence, readable=readable)
    ended = process_evidence.exit
    evidence.append("the process in launch.json does not run, nor does another engine of the run")
    if ended is not None and ended.state:
        state, step, heartbeat, message = ended.state, ended.step, ended.heartbeat, ended.message
        evidence.append(f"exit-{process}.json: {state} at step {step}")
    else:
        rows, restore = attempt.last_row, attempt.restore
        step = rows + 1 if rows is not None else restore.step if restore else 0
        state, heartbeat, message = records.TRAINING, 0.0, "its status was lost; repaired from its metrics"
        evidence.append(
            f"metrics.jsonl ends after step {step}"
            if rows is not None
            else f"restore.json: step {step}"
            if restore
            else "no metrics and no restore.json: no step was done"
        )
    checkpoints = [
        checkpoint for checkpoint in host_evidence.checkpoints if checkpoint.attempt == number and checkpoint.complete
    ]
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.step, default=None)
    if newest is not None:
        evidence.append(f"its newest complete checkpoint: {newest.name}")
    entry = _lineage_entry(gathered, number)
    device = records.Device(entry.device_kind).to_json() if entry else {}
    others = [candidate.status.processes for candidate in attempt.processes if candidate.status is not None]
    status = records.Status(
        state=state,
        step=step,
        process=process,
        heartbeat=heartbeat,
        run_id=gathered.run_id,
        attempt=number,
        epoch=epoch,
        processes=max([1, process_evidence.group, *others]),
        devices=[device] * entry.devices if entry else [],
        checkpoint=newest.name if newest else None,
        root_digest=newest.root_digest if newest else None,
        message=message,
        pid=launched.pid,
        start_ticks=launched.start_ticks,
        boot_id=launched.boot_id,
        machine=launched.machine,
        namespace=launched.namespace,
    )
    return status, evidence


def _status_where_it_ran(
    gathered: FleetEvidence, host: str, number: int, process: int
) -> tuple[records.Status, list[str]] | None:
    """Return a copied attempt's status from the host that ran it.

    None where that host does not show it.
    """
    entry = _lineage_entry(gathered, number)
    ran_on = gathered.targets.get(entry.target, ()) if entry is not None else ()
    for name in () if host in ran_on else ran_on:
        attempts = gathered.hosts[name].attempts if name in gathered.hosts else []
        processes = [shown for attempt in attempts if attempt.attempt == number for shown in attempt.processes]
        for shown in processes:
            if shown.process == process and shown.status is not None:
                return shown.status, [f"lineage: attempt {number} ran on {name}, which has this status of it"]
    return None


def _lineage_entry(gathered: FleetEvidence, number: int) -> records.LineageEntry | None:
    entries = [entry for lineage in gathered.lineages().values() for entry in lineage.entries]
    return next((entry for entry in entries if entry.attempt == number), None)


def _epoch(
    gathered: FleetEvidence, attempt: AttemptEvidence, fence: records.Fence | None, *, readable: bool
) -> tuple[int, list[str]]:
    """Return the epoch of the attempt; 0 for a standby that never had the run.

    ``readable``: the host's lineage can be read, or there is none yet. An engine is in it before its first step.
    """
    number, command = attempt.attempt, attempt.command
    entry = _lineage_entry(gathered, number)
    if entry is not None:
        return entry.epoch, [f"lineage.json: attempt {number} is of ownership {entry.epoch}"]
    if command is not None and command.action in (records.STANDBY, records.REPLAY):
        return 0, [f"command.json: attempt {number} was a standby, and is not in the lineage: it never had the run"]
    if fence is not None and fence.epoch == 1 and not fence.seals:
        return 1, ["the fence is at ownership 1: the run has never migrated"]
    if command is not None and command.migration and readable:
        what = f"command.json: attempt {number} was commanded to {command.action} under ownership {command.epoch}"
        return command.epoch, [f"{what}, and is not in the lineage: it has done no step"]
    raise UndeterminedError(f"no lineage has the ownership of attempt {number}")
