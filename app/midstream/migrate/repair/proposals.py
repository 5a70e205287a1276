"""One proposal for each damaged record of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from midstream.migrate.repair.fence_repair import lost_fence
from midstream.migrate.repair.history_repair import lost_lineage, lost_status
from midstream.migrate.repair.repair_proposal import Proposal, Undetermined
from midstream.migrate.repair.run_evidence import Seen, store_of
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host_pool import Hosts

LEASE = 3600.0  # seconds after which no migration has a run that it has not sealed
# In this order: what comes later is derived from what comes first.
_ORDER = ("fence.json", "lineage.json", "migration_lock.json", "store.json")
_STATUS = re.compile(r"attempts/([0-9]+)/status-([0-9]+)\.json")
_OF_ATTEMPT = re.compile(r"attempts/([0-9]+)/((?:launch|exit|order|restore|crossing)[-0-9]*)\.json")
_PIN = re.compile(r"pins/(.+)\.json")

Determined = tuple[Mapping[str, Any] | None, list[str]]


def propose(seen: Seen, only: str = "") -> list[Proposal]:
    """What would be written on each host (on ``only`` that one), the fence first."""
    found = []
    for host, left in seen.hosts.items():
        if only in ("", host):
            found += _on_host(seen, host, left)
    return found


def apply(hosts: Hosts, proposal: Proposal) -> str:
    """Write a proposal that is determined; the name under which the damaged file is kept. HostError, RemoteError."""
    host = hosts.get(proposal.host)
    value = None if proposal.value is None else dict(proposal.value)
    kept: str = host.call(
        "runs.record_repair.put", root=host.root, run_id=proposal.run_id, file=proposal.file, value=value
    )
    return kept


def _on_host(seen: Seen, host: str, left: Mapping[str, Any]) -> list[Proposal]:
    damaged = dict(left["damaged"])
    if left["fence"] is None and "fence.json" not in damaged and left["attempts"]:
        damaged["fence.json"] = "it is missing, and the run has attempts"
    fence = None if left["fence"] is None else records.Fence.from_json(left["fence"])
    found = []
    names = sorted(damaged, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    for name in names:
        try:
            value, evidence = _repair(seen, host, name, fence)
            found.append(Proposal(host, seen.run_id, name, damaged[name], value, tuple(evidence)))
        except Undetermined as error:
            found.append(Proposal(host, seen.run_id, name, damaged[name], missing=str(error)))
            continue
        if name == "fence.json" and value is not None:
            fence = records.Fence.from_json(dict(value))
        if name == "lineage.json" and value is not None:
            left = {**left, "lineage": value}
            seen = dataclasses.replace(seen, hosts={**seen.hosts, host: left})
    return found


def _repair(seen: Seen, host: str, name: str, fence: records.Fence | None) -> Determined:
    if name == "fence.json":
        found, evidence = lost_fence(seen, host)
        return found.to_json(), evidence
    if name == "lineage.json":
        lineage, evidence = lost_lineage(seen, host, fence)
        return lineage.to_json(), evidence
    if name == "migration_lock.json":
        return _mover(seen, host)
    if name == "store.json":
        return _store(seen, host)
    if match := _STATUS.fullmatch(name):
        status, evidence = lost_status(seen, host, int(match[1]), int(match[2]), fence)
        return status.to_json(), evidence
    if match := _OF_ATTEMPT.fullmatch(name):
        return _of_attempt(seen, host, int(match[1]), match[2])
    if match := _PIN.fullmatch(name):
        return _pin(seen, match[1])
    raise Undetermined("nothing else on the host says what it held")


def _mover(seen: Seen, host: str) -> Determined:
    """The migration that has the run: one that this machine has begun, or none any more."""
    left = seen.hosts[host]
    mine = [view for view in seen.migrations if view.open]
    if len(mine) == 1:
        plan = mine[0].plan
        mover = records.MigrationLock(plan.migration, plan.epoch, plan.target, left["now"])
        return mover.to_json(), [f"migration {plan.migration}, begun from this machine, is {mine[0].state}"]
    age = left["now"] - left["changed"]["migration_lock.json"]
    if mine or age < LEASE:
        raise Undetermined(
            "a migration that another machine began may have the run: it is over within an hour of the last change "
            f"of migration_lock.json, {max(0.0, age):.0f} s ago"
        )
    return None, [f"it was written {age:.0f} s ago: no migration has a run for longer without sealing it"]


def _store(seen: Seen, host: str) -> Determined:
    url = store_of(seen.hosts[host]["config"])
    if not url:
        raise Undetermined("run.yaml names no bucket (trainer.checkpointer.base_path), and store.json does")
    return records.Store(url).to_json(), [f"run.yaml: trainer.checkpointer.base_path is {url}"]


def _of_attempt(seen: Seen, host: str, number: int, what: str) -> Determined:
    """A record that nobody needs any more once the attempt has ended, and no migration goes on with it."""
    attempt = next((each for each in seen.hosts[host]["attempts"] if each["attempt"] == number), None)
    if attempt is None:
        raise Undetermined(f"attempt {number} has left nothing else")
    if attempt["running"]:
        raise Undetermined(f"attempt {number} may still need it: {attempt['running']}")
    still = next((view.migration for view in seen.migrations if view.open), "")
    if still and what in ("command", "restore", "parameter_drift"):
        raise Undetermined(f"migration {still} is open, and may need it: finish it or roll it back first")
    if what.startswith("launch") and not any(each["status"] for each in attempt["processes"]):
        raise Undetermined("no status says which process it was")
    said: Callable[[str], str] = f"attempt {number} has ended: {{}}".format
    status = next((each["status"] for each in attempt["processes"] if each["status"] is not None), None)
    words = "no process of it runs on this host" if status is None else f"{status['state']} at step {status['step']}"
    return None, [said(words), f"{what}.json is not read of an attempt that has ended, except as evidence"]


def _pin(seen: Seen, migration: str) -> Determined:
    view = next((view for view in seen.migrations if view.migration == migration), None)
    if view is None:
        raise Undetermined(f"which checkpoint it holds is known where migration {migration} was begun")
    if view.open:
        raise Undetermined(f"migration {migration} is {view.state}: finish it or roll it back first")
    return None, [f"migration {migration} is {view.state}: it holds no checkpoint any more"]
