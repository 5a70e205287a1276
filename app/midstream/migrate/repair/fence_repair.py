"""Determine the fence of a host from the evidence of the run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from midstream.migrate.repair.repair_proposal import UndeterminedError
from midstream.migrate.repair.run_evidence import FleetEvidence
from midstream_core import records
from midstream_host.runs.record_repair import AttemptEvidence

Found = tuple[records.Fence, list[str]]


def lost_fence(gathered: FleetEvidence, host: str) -> Found:
    """Return the fence of ``host``, and the evidence for it.

    ``gathered`` is the evidence that counts for that host.

    Raises:
        UndeterminedError: The evidence does not determine it.
    """
    _check_all_answer(gathered, host)
    highest, why = _highest_epoch(gathered)
    copies = gathered.fences
    if copies:
        base, evidence = _newest_copy(copies)
    else:
        base, evidence = _from_lineage(gathered)
    evidence = [*evidence, f"no checkpoint, status or lineage is above ownership {base.epoch}"]
    head = gathered.judgement.head
    if head is not None and base.epoch < head.epoch and host in gathered.judgement.owner_hosts:
        raise UndeterminedError(
            f"{head.owner} owns it by a signed record (ownership {head.epoch}), and no copy of that fence can be read"
        )
    if highest > base.epoch:
        raise UndeterminedError(f"{why} is of ownership {highest}, and no copy of its fence can be read")
    base, evidence = _with_starts(gathered, host, base, evidence)
    return _after_migration_lock(gathered, host, base, evidence)


def _check_all_answer(gathered: FleetEvidence, host: str) -> None:
    """Raise UndeterminedError if an unreadable location may have a higher ownership."""
    if gathered.newer_fences:
        raise UndeterminedError(
            f"a newer midstream wrote the fence on {', '.join(gathered.newer_fences)}: update midstream"
        )
    if gathered.unreachable:
        unreachable = "; ".join(f"{name} ({why})" for name, why in gathered.unreachable.items())
        raise UndeterminedError(f"not answering, and may have a higher ownership: {unreachable}")
    others = [name for name in gathered.damaged_fences if name != host]
    if others and not gathered.fences:
        raise UndeterminedError(f"the fence cannot be read on {', '.join(others)} either, and there is no other copy")
    head = gathered.judgement.head
    proven = 0 if head is None else head.epoch  # owners up to here are signed
    named = {
        entry.target: location
        for location, lineage in gathered.lineages().items()
        for entry in lineage.entries
        if entry.epoch > proven
    }
    named.update({fence.owner: location for location, fence in gathered.fences.items() if fence.epoch > proven})
    if head is not None:
        named[head.owner] = "a signed record"
    unknown = [f"{name} (named by {location})" for name, location in named.items() if name not in gathered.targets]
    # The fence of a run started without a launcher is owned by the machine's own name.
    if unknown and (len(named) > 1 or len(gathered.hosts) > 1):
        raise UndeterminedError(f"not in the fleet file, and may have a higher ownership: {', '.join(unknown)}")


def _newest_copy(copies: Mapping[str, records.Fence]) -> Found:
    epoch = max(fence.epoch for fence in copies.values())
    newest = {location: fence for location, fence in copies.items() if fence.epoch == epoch}
    first = max(newest.values(), key=lambda fence: fence.order)  # a source's seal has no start of the target
    if not all(first.continues(fence) for fence in newest.values()):
        raise UndeterminedError(f"copies of ownership {epoch} differ: {', '.join(newest)}")
    return first, [f"{location}: ownership {first.epoch}, owner {first.owner}" for location in newest]


def _highest_epoch(gathered: FleetEvidence) -> tuple[int, str]:
    """Return the highest epoch of any record, and the name of that record."""
    epochs = [(0, "nothing")]
    for name, host_evidence in gathered.hosts.items():
        epochs += [(checkpoint.epoch, f"{name}: {checkpoint.name}") for checkpoint in host_evidence.checkpoints]
    for name, lineage in gathered.lineages().items():
        epochs += [(entry.epoch, f"{name}: attempt {entry.attempt} of the lineage") for entry in lineage.entries]
    epochs += [(status.epoch, f"{name}: attempt {status.attempt}") for name, status in gathered.statuses()]
    return max(epochs)


def _with_starts(gathered: FleetEvidence, host: str, base: records.Fence, evidence: list[str]) -> Found:
    """Return ``base`` with the newest start of its epoch that is shown.

    Its owner shows it, this machine has seen it, or another host's copy of a checkpoint claims it.
    An older start is closed where its successor continued: at its newest complete checkpoint before those of later
    starts.
    """
    names = [name for name in gathered.hosts if name == host or name in gathered.targets.get(base.owner, ())]
    saved = [
        (step, start) for values in gathered.stored.values() for epoch, step, start in values if epoch == base.epoch
    ]
    saved += [
        (checkpoint.step, checkpoint.start)
        for name in names
        for checkpoint in gathered.hosts[name].checkpoints
        if checkpoint.complete and checkpoint.epoch == base.epoch
    ]
    shown = {start: f"a checkpoint of step {step}" for step, start in saved}
    for name, status in gathered.statuses():
        if name in names and status.epoch == base.epoch:
            shown[status.start] = f"{name}: attempt {status.attempt}"
    head = gathered.judgement.head
    # After its own seal the owner's fence has another epoch, of which these starts say nothing.
    if head is not None and head.epoch == base.epoch:
        shown = {**gathered.claimed_starts, **shown}
    newest = max(shown, default=0)
    if newest <= base.start:
        return base, evidence
    closed = list(base.starts)
    for start in sorted({start for start in shown if base.start <= start < newest} | {newest - 1}):
        later = min((step for step, number in saved if number > start), default=math.inf)
        steps = [step for step, number in saved if number <= start and step < later]
        steps += [] if base.sealed_step is None else [base.sealed_step]
        limit = max(steps) if steps else None
        closed.append(records.ClosedStart(base.epoch, start, limit).to_json())
    fence = dataclasses.replace(base, start=newest, starts=closed)
    return fence, [*evidence, f"{shown[newest]} is of start {newest} of ownership {base.epoch}"]


def _from_lineage(gathered: FleetEvidence) -> Found:
    """Rebuild a fence without a copy from the lineage.

    The lineage must have the owner and the seal of each epoch.
    """
    entries = {entry.attempt: entry for lineage in gathered.lineages().values() for entry in lineage.entries}
    if not entries:
        raise UndeterminedError("there is no other copy of the fence, and no lineage has the owner of the run")
    first: dict[int, records.LineageEntry] = {}
    for number in sorted(entries):
        first.setdefault(entries[number].epoch, entries[number])
    newest = max(first)
    if min(first) != 1 or len(first) != newest:
        raise UndeterminedError(
            f"the lineage lacks an attempt of an ownership below {newest}: the step of its seal is not known"
        )
    migrations = [first[epoch].migration for epoch in range(2, newest + 1)]
    if len(set(migrations)) != len(migrations) or not all(migrations):
        raise UndeterminedError("the lineage has a migration that was rolled back: the step of its seal is not known")
    fence = records.first_fence(first[1].target)
    for epoch in range(2, newest + 1):
        fence = fence.sealed(epoch, first[epoch].target, first[epoch].first_step)
    lines = [
        f"lineage: attempt {entry.attempt} of ownership {epoch} belongs to {entry.target}, "
        f"from step {entry.first_step} on"
        for epoch, entry in sorted(first.items())
    ]
    owners = {entry.target for entry in entries.values() if entry.epoch == newest}
    if owners != {fence.owner}:
        raise UndeterminedError(
            f"the lineage names several targets under ownership {newest}: {', '.join(sorted(owners))}"
        )
    return fence, [*lines, "no host of the fleet has another copy of the fence"]


def _after_migration_lock(gathered: FleetEvidence, host: str, base: records.Fence, evidence: list[str]) -> Found:
    """Return ``base``, or the fence after the seal of a migration.

    The migration had the run on this host.
    """
    host_evidence = gathered.hosts[host]
    if "migration_lock.json" in host_evidence.damaged:
        raise UndeterminedError("migration_lock.json cannot be read either: a migration may have sealed the run")
    lock = host_evidence.migration_lock
    if lock is None:
        return base, [*evidence, "no migration has the run on this host"]
    if lock.epoch <= base.epoch:
        return base, [*evidence, f"the last migration here ({lock.migration}) began ownership {lock.epoch}"]
    for attempt in host_evidence.attempts:
        sealed = _acknowledged(attempt, lock)
        if sealed is not None and lock.epoch == base.epoch + 1:
            fence = base.sealed(lock.epoch, lock.owner, sealed)
            line = (
                f"attempt {attempt.attempt} stopped at step {sealed} for migration {lock.migration}, and sealed the run"
            )
            return fence, [*evidence, line]
    training = next((attempt for attempt in host_evidence.attempts if _trains(attempt, base.epoch)), None)
    if training is not None:
        line = f"attempt {training.attempt} trains under ownership {base.epoch}: nothing has sealed it"
        return base, [*evidence, line]
    if _has_not_begun(gathered, base, lock):
        line = f"migration {lock.migration} has no permission to start {lock.owner}, which shows nothing of it"
        return base, [*evidence, line]
    raise UndeterminedError(
        f"migration {lock.migration} has the run on {host}, and may have sealed it for ownership {lock.epoch} "
        f"(owner {lock.owner})"
    )


def _has_not_begun(gathered: FleetEvidence, base: records.Fence, lock: records.MigrationLock) -> bool:
    """Return whether a migration has started nothing.

    Its target may start after the permission in the lock alone. The lock may be an older copy, as the fence is
    lost. So the signed records have to say the same, and the hosts of the target, whose highest ownership is
    not above that of ``base``.
    """
    head, hosts = gathered.judgement.head, gathered.targets.get(lock.owner, ())
    signed = head is not None and head.epoch == base.epoch
    return signed and lock.start_allowed == "" and bool(hosts) and all(name in gathered.hosts for name in hosts)


def _acknowledged(attempt: AttemptEvidence, lock: records.MigrationLock) -> int | None:
    """Return the step of an engine's seal, by command and status; None without one."""
    command = attempt.command
    status = next((process.status for process in attempt.processes if process.process == 0), None)
    if command is None or status is None or command.action != records.STOP or command.migration != lock.migration:
        return None
    done = status.state == records.STOPPED and status.acknowledged >= command.sequence and command.epoch == lock.epoch
    return status.step if done else None


def _trains(attempt: AttemptEvidence, epoch: int) -> bool:
    """Return whether an engine trains under ``epoch``; that of a sealed run exits."""
    statuses = [process.status for process in attempt.processes if process.status is not None]
    running = bool(attempt.running) and any(status.state not in records.ENDED for status in statuses)
    return running and any(status.epoch == epoch for status in statuses)
