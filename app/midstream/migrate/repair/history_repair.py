"""Lineage and statuses that were lost, by what the attempts have left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.migrate.repair.repair_proposal import Undetermined
from midstream.migrate.repair.run_evidence import Seen
from midstream_engine import records


def lost_lineage(seen: Seen, host: str, fence: records.Fence | None) -> tuple[records.Lineage, list[str]]:
    """The chain of attempts as other hosts have it, and those of this host that are not in it. Undetermined."""
    lineage, evidence = records.Lineage(seen.run_id), []
    for name, other in seen.lineages().items():
        for entry in other.entries:
            known = next((each for each in lineage.entries if each.attempt == entry.attempt), None)
            if known is not None and _beginning(known) != _beginning(entry):
                raise Undetermined(f"the lineages of other hosts differ in attempt {entry.attempt}")
            if known is None or known.last_step is None:
                lineage = lineage.with_entry(entry)
        evidence.append(f"{name}: lineage.json has attempts {', '.join(str(entry.attempt) for entry in other.entries)}")
    there = {entry.attempt for entry in lineage.entries}
    for attempt in seen.hosts[host]["attempts"]:
        number = attempt["attempt"]
        points = [point for point in seen.hosts[host]["checkpoints"] if point["attempt"] == number]
        if number in there:
            continue
        if attempt["last_row"] is None and not points:
            evidence.append(f"attempt {number} has done no step: it is left out")
            continue
        entry = _entry(attempt, fence)
        lineage = lineage.with_entry(entry)
        begun = f"restored {entry.checkpoint}" if entry.checkpoint else "began at step 0"
        ended = "runs" if entry.last_step is None else f"ended at step {entry.last_step}"
        evidence.append(
            f"attempt {number}: its status, restore.json and metrics: epoch {entry.epoch}, {begun}, {ended}"
        )
    if not lineage.attempts:
        raise Undetermined("no attempt has left a step, and no other host has a lineage")
    return lineage, evidence


def _beginning(entry: records.LineageEntry) -> tuple[Any, ...]:
    return entry.epoch, entry.target, entry.first_step, entry.checkpoint, entry.root_digest


def _entry(attempt: Mapping[str, Any], fence: records.Fence | None) -> records.LineageEntry:
    number = attempt["attempt"]
    status = next((each["status"] for each in attempt["processes"] if each["status"] is not None), None)
    if status is None:
        raise Undetermined(f"attempt {number} has no status that can be read: its epoch and devices are not known")
    found = records.Status.from_json(status)
    if fence is None:
        raise Undetermined("the fence, which says whose the attempts are, is not known: repair that first")
    if found.epoch != fence.epoch:
        raise Undetermined(f"attempt {number} is of epoch {found.epoch}: whose target it was is not known")
    restore = attempt["restore"]
    if restore is None and attempt["first_row"] not in (0, None):
        raise Undetermined(f"attempt {number} began at step {attempt['first_row']}, and no restore.json says from what")
    order = attempt["command"] or {}
    devices = found.devices
    return records.LineageEntry(
        attempt=number,
        epoch=found.epoch,
        target=fence.owner,
        devices=len(devices),
        device_kind=devices[0].get("kind", "") if devices else "",
        first_step=restore["step"] if restore else 0,
        last_step=found.step if found.state in records.ENDED else None,
        checkpoint=restore["checkpoint"] if restore else None,
        root_digest=restore["root_digest"] if restore else None,
        migration=order.get("migration", ""),
    )


def lost_status(
    seen: Seen, host: str, number: int, process: int, fence: records.Fence | None
) -> tuple[records.Status, list[str]]:
    """The last status of a process that does not run any more. Undetermined: one that runs writes it again itself."""
    found = seen.hosts[host]
    attempt = next((each for each in found["attempts"] if each["attempt"] == number), None)
    mine = next((each for each in attempt["processes"] if each["process"] == process), None) if attempt else None
    if attempt is None or mine is None:
        raise Undetermined(f"attempt {number} has left nothing else of process {process}")
    if attempt["running"]:
        raise Undetermined(f"{attempt['running']}: an engine that runs writes its status again within seconds")
    if mine["launched"] is None:
        raise Undetermined("launch.json, which says which process it was, cannot be read")
    epoch, evidence = _epoch(seen, attempt, fence)
    ended = None if mine["exit"] is None else records.ProcessExit.from_json(mine["exit"])
    evidence.append("the process that launch.json names does not run, and no other engine of the run does")
    if ended is not None and ended.state:
        state, step, heartbeat, message = ended.state, ended.step, ended.heartbeat, ended.message
        evidence.append(f"exit-{process}.json: {state} at step {step}")
    else:
        rows, restore = attempt["last_row"], attempt["restore"]
        step = rows + 1 if rows is not None else restore["step"] if restore else 0
        state, heartbeat, message = records.TRAINING, 0.0, "its status was lost; repaired from its metrics"
        evidence.append(
            f"metrics.jsonl ends after step {step}"
            if rows is not None
            else f"restore.json: step {step}"
            if restore
            else "there are no rows of metrics and no restore.json: no step was done"
        )
    points = [point for point in found["checkpoints"] if point["attempt"] == number and point["complete"]]
    newest = max(points, key=lambda point: point["step"], default=None)
    if newest is not None:
        evidence.append(f"its newest complete checkpoint: {newest['name']}")
    entry = _lineage_entry(seen, number)
    devices = [{"kind": entry.device_kind, "platform": "", "memory_bytes": None}] * entry.devices if entry else []
    others = [each["status"]["processes"] for each in attempt["processes"] if each["status"] is not None]
    status = records.Status(
        state=state,
        step=step,
        process=process,
        heartbeat=heartbeat,
        run_id=seen.run_id,
        attempt=number,
        epoch=epoch,
        processes=max([1, mine["group"], *others]),
        devices=devices,
        checkpoint=newest["name"] if newest else None,
        root_digest=newest["root_digest"] if newest else None,
        message=message,
        **mine["launched"],
    )
    return status, evidence


def _lineage_entry(seen: Seen, number: int) -> records.LineageEntry | None:
    entries = [entry for lineage in seen.lineages().values() for entry in lineage.entries]
    return next((entry for entry in entries if entry.attempt == number), None)


def _epoch(seen: Seen, attempt: Mapping[str, Any], fence: records.Fence | None) -> tuple[int, list[str]]:
    """The epoch that the attempt ran under, 0 where it never had the run."""
    number, order = attempt["attempt"], attempt["command"]
    entry = _lineage_entry(seen, number)
    if entry is not None:
        return entry.epoch, [f"lineage.json: attempt {number} is of epoch {entry.epoch}"]
    if order is not None and order["action"] in (records.STANDBY, records.REPLAY):
        return 0, [f"command.json: attempt {number} stood by, and the lineage does not have it: it never had the run"]
    if fence is not None and fence.epoch == 1 and not fence.seals:
        return 1, ["the fence is at epoch 1: the run has never moved"]
    raise Undetermined(f"no lineage says under which epoch attempt {number} ran")
