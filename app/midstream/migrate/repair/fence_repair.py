"""Which fence a host has lost, by what is left of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.migrate.repair.repair_proposal import Undetermined
from midstream.migrate.repair.run_evidence import Seen
from midstream_engine import records

Found = tuple[records.Fence, list[str]]


def lost_fence(seen: Seen, host: str) -> Found:
    """The fence that belongs on ``host``, and the evidence for it. Undetermined."""
    _check_all_answer(seen, host)
    highest, why = _highest_epoch(seen)
    copies = seen.fences
    if copies:
        base, evidence = _newest_copy(copies)
    else:
        base, evidence = _from_lineage(seen)
    evidence = [*evidence, f"no checkpoint, status or lineage is of an epoch above {base.epoch}"]
    if highest > base.epoch:
        raise Undetermined(f"{why} is of epoch {highest}, and no copy of its fence can be read")
    return _after_the_mover(seen, host, base, evidence)


def _check_all_answer(seen: Seen, host: str) -> None:
    """Undetermined where somebody could know of a higher epoch and does not say."""
    if seen.silent:
        silent = "; ".join(f"{name} ({why})" for name, why in seen.silent.items())
        raise Undetermined(f"not answering, and may hold a higher epoch: {silent}")
    others = [name for name in seen.damaged_fences if name != host]
    if others and not seen.fences:
        raise Undetermined(f"the fence cannot be read on {', '.join(others)} either, and there is no other copy")
    named = {entry.target: place for place, lineage in seen.lineages().items() for entry in lineage.entries}
    named.update({fence.owner: place for place, fence in seen.fences.items()})
    unknown = [f"{name} (named by {place})" for name, place in named.items() if name not in seen.targets]
    # A run that its own machine began, without a launcher, is held by that machine's name.
    if unknown and (len(named) > 1 or len(seen.hosts) > 1):
        raise Undetermined(f"not in the fleet file, and may hold a higher epoch: {', '.join(unknown)}")


def _newest_copy(copies: Mapping[str, records.Fence]) -> Found:
    epoch = max(fence.epoch for fence in copies.values())
    newest = {place: fence for place, fence in copies.items() if fence.epoch == epoch}
    first = next(iter(newest.values()))
    if any(fence != first for fence in newest.values()):
        raise Undetermined(f"copies of epoch {epoch} differ: {', '.join(newest)}")
    return first, [f"{place}: epoch {first.epoch}, holder {first.owner}" for place in newest]


def _highest_epoch(seen: Seen) -> tuple[int, str]:
    """The highest epoch that anything was written under, and what that was."""
    epochs = [(0, "nothing")]
    for name, found in seen.hosts.items():
        epochs += [(point["epoch"], f"{name}: {point['name']}") for point in found["checkpoints"]]
    for name, lineage in seen.lineages().items():
        epochs += [(entry.epoch, f"{name}: attempt {entry.attempt} of the lineage") for entry in lineage.entries]
    epochs += [(status.epoch, f"{name}: attempt {status.attempt}") for name, status in seen.statuses()]
    return max(epochs)


def _from_lineage(seen: Seen) -> Found:
    """Without a copy anywhere: the chain of attempts, where it says who held each epoch, and where it was sealed."""
    entries = {entry.attempt: entry for lineage in seen.lineages().values() for entry in lineage.entries}
    if not entries:
        raise Undetermined("there is no other copy of the fence, and no lineage says whose the run is")
    first: dict[int, records.LineageEntry] = {}
    for number in sorted(entries):
        first.setdefault(entries[number].epoch, entries[number])
    newest = max(first)
    if sorted(first) != list(range(1, newest + 1)):
        raise Undetermined(f"the lineage has no attempt of some epoch below {newest}: where it was sealed is not known")
    migrations = [first[epoch].migration for epoch in range(2, newest + 1)]
    if len(set(migrations)) != len(migrations) or not all(migrations):
        raise Undetermined("the lineage has a migration that was rolled back: where that was sealed is not known")
    fence = records.first_fence(first[1].target)
    for epoch in range(2, newest + 1):
        fence = fence.sealed(epoch, first[epoch].target, first[epoch].first_step)
    told = [
        f"lineage: attempt {entry.attempt} of epoch {epoch} is {entry.target}'s, from step {entry.first_step} on"
        for epoch, entry in sorted(first.items())
    ]
    held = {entry.target for entry in entries.values() if entry.epoch == newest}
    if held != {fence.owner}:
        raise Undetermined(f"the lineage names several targets under epoch {newest}: {', '.join(sorted(held))}")
    return fence, [*told, "no host of the fleet has another copy of the fence"]


def _after_the_mover(seen: Seen, host: str, base: records.Fence, evidence: list[str]) -> Found:
    """``base``, unless a migration that had the run on this host may have gone further."""
    found = seen.hosts[host]
    if "migration_lock.json" in found["damaged"]:
        raise Undetermined("migration_lock.json cannot be read either: a migration may have sealed the run")
    mover = None if found["migration_lock"] is None else records.MigrationLock.from_json(found["migration_lock"])
    if mover is None:
        return base, [*evidence, "no migration has the run on this host"]
    if mover.epoch <= base.epoch:
        return base, [*evidence, f"the migration that was here last ({mover.migration}) began epoch {mover.epoch}"]
    for attempt in found["attempts"]:
        sealed = _acknowledged(attempt, mover)
        if sealed is not None and mover.epoch == base.epoch + 1:
            fence = base.sealed(mover.epoch, mover.owner, sealed)
            told = f"attempt {attempt['attempt']} stopped at step {sealed} for migration {mover.migration}, and sealed"
            return fence, [*evidence, told]
    training = next((attempt for attempt in found["attempts"] if _trains(attempt, base.epoch)), None)
    if training is not None:
        told = f"attempt {training['attempt']} trains under epoch {base.epoch}: nothing has sealed it"
        return base, [*evidence, told]
    raise Undetermined(
        f"migration {mover.migration} has the run on {host}, and may have sealed it for epoch {mover.epoch} "
        f"(holder {mover.owner})"
    )


def _acknowledged(attempt: Mapping[str, Any], mover: records.MigrationLock) -> int | None:
    """The step at which an engine has sealed itself for the migration, by order and status; None where it has not."""
    order = attempt["command"]
    status = next((each["status"] for each in attempt["processes"] if each["process"] == 0), None)
    if order is None or status is None or order["action"] != records.STOP or order["migration"] != mover.migration:
        return None
    done = (
        status["state"] == records.STOPPED
        and status["acknowledged"] >= order["sequence"]
        and order["epoch"] == mover.epoch
    )
    return status["step"] if done else None


def _trains(attempt: Mapping[str, Any], epoch: int) -> bool:
    """Whether an engine runs that has the run under ``epoch``: it ends where it is sealed."""
    statuses = [each["status"] for each in attempt["processes"] if each["status"] is not None]
    running = bool(attempt["running"]) and any(status["state"] not in records.ENDED for status in statuses)
    return running and any(status["epoch"] == epoch for status in statuses)
