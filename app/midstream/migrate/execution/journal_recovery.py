"""What a damaged journal no longer says, established again from what the hosts hold: nothing is guessed.

The source's fence and mover name the migration, the attempts' orders too. Where a fact cannot be read anywhere, the
phases establish it by running again, and a rollback demands evidence from the target before the source goes on.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.launch.host_group_start import AT_ONCE
from midstream.migrate.execution.journal import REESTABLISHED, read_events
from midstream.migrate.execution.migration import Migration, MovedOn
from midstream.migrate.host_group import HostGroup
from midstream.migrate.model import CUTOVER, DONE, LIVE, PREPARE, ROLLBACK, STARTED, Plan
from midstream.migrate.phases.seal import sealed_already
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.migrate.execution.migration_directory import MigrationDirectory


def reestablish(move: Migration, *, rollback: bool) -> None:
    """Journal what phases have to know and the journal may have lost. ``rollback``: the target need not answer.

    HostError where a host that has to does not answer; MovedOn where the run is not this migration's any more."""
    plan, known = move.plan, move.journal.known
    move.note("the journal is damaged; what it may have said is established again from the hosts")
    fence, ours = _fence(move)
    if not ours and fence.epoch >= plan.epoch:
        raise MovedOn(
            f"run {plan.run_id} is at epoch {fence.epoch} (holder {fence.owner}), and this migration does not have it",
            "midstream --status shows where it is",
        )
    found: dict[str, Any] = {}
    begun = ours and fence.epoch >= plan.epoch
    if begun:  # by the source's own record it is closed: the target may have started since
        found.update(holder_before=plan.source_target or plan.source, relaunching=True)
    if ours:
        found.update(_order_to_stop(move))
    sealed = known("sealed") or (sealed_already(move) if ours else None)
    if sealed is not None:
        found["sealed"] = sealed
    found.update(_on_the_target(move, sealed is not None, rollback))
    lost = {name: value for name, value in found.items() if known(name) is None}
    crosses = lost.get("crossing_step") or known("crossing_step") or lost.get("rehearsal") or known("rehearsal")
    if plan.mode == LIVE and sealed is None and not crosses:
        lost["fallen_back"] = "the journal is damaged"
    _phases(move, sealed is not None, "target_attempt" in found or known("target_attempt") is not None)
    if ours and fence.epoch > plan.epoch and not _has(move, ROLLBACK, STARTED):
        move.journal.write("phase", phase=ROLLBACK, state=STARTED, message="a rollback was under way", exit_code=1)
    move.journal.fact(**lost, **{REESTABLISHED: time.time()})
    move.note(f"established again: {', '.join(sorted(lost)) or 'nothing was lost that is needed'}")


def _fence(move: Migration) -> tuple[records.Fence, bool]:
    """The source's fence, and whether the migration has the run in its hands there."""
    plan, source = move.plan, move.source
    value = move.source_group.describe()["fence"]
    fence = records.Fence.from_json(value, f"{source.name}: fence.json of {plan.run_id}")
    mover = source.call("runs.ownership.migration_lock", root=source.root, run_id=plan.run_id)
    return fence, mover is not None and mover["migration"] == plan.migration


def _order_to_stop(move: Migration) -> dict[str, Any]:
    """What the migration ordered the source's running engine to do: only one that ran was given an order."""
    found = _newest_order(move, move.source_group, (records.STOP, records.SAVE))
    if found is None:
        return {}
    number, order = found
    facts: dict[str, Any] = {"source_was_alive": True, "sealing_attempt": number}
    if order.action == records.STOP:
        facts["seal_serial"] = order.sequence
        if order.step is not None:
            facts["crossing_step"] = order.step
    return facts


def _on_the_target(move: Migration, sealed: bool, rollback: bool) -> dict[str, Any]:
    """The attempt that the migration started there, and what it rehearsed on."""
    plan, facts = move.plan, dict[str, Any]()
    try:
        newest = move.target_group.attempt_of_migration(plan.migration)
        held = _newest_order(move, move.target_group, (records.STANDBY, records.REPLAY))
    except HostError:
        if not rollback:
            raise
        return facts  # the rollback waits for it before the source goes on
    if newest is not None and plan.stands_by:
        facts["standby_attempt"] = newest["attempt"]
    if newest is not None and sealed and (newest["status"] or {}).get("epoch") == plan.epoch:
        facts["target_attempt"] = newest["attempt"]
    if held is not None and held[1].checkpoint and held[1].root_digest and held[1].step is not None:
        order = held[1]
        facts["rehearsal"] = {"name": order.checkpoint, "step": order.step, "root_digest": order.root_digest}
    return facts


def _newest_order(move: Migration, side: HostGroup, actions: tuple[str, ...]) -> tuple[int, records.Command] | None:
    """The newest attempt on a side that holds an order of this migration's, one of ``actions``, and that order."""
    for number in sorted(side.describe()["attempts"], reverse=True):
        path = side.paths.attempt(number).command_file
        try:
            text = side.first.call("runs.run_state.read_text", path=path)
        except RemoteError as error:
            if error.kind == "FileNotFoundError":
                continue
            raise
        try:
            where = f"{side.first.name}: {path}"
            order = records.Command.from_json(decode_file(text, where), where)
        except ValueError as error:
            raise MidstreamError(f"{side.first.name}: {path} cannot be read: {error}") from error
        if order.migration == move.plan.migration and order.action in actions:
            return number, order
    return None


def _phases(move: Migration, sealed: bool, took_over: bool) -> None:
    """What the hosts show to be done: the seal comes after the preparation, the target's start after the cutover."""
    for phase, evident in ((PREPARE, sealed), (CUTOVER, took_over)):
        if evident and not _has(move, phase, DONE):
            move.journal.write("phase", phase=phase, state=DONE, message="by what the hosts hold")


def _has(move: Migration, phase: str, state: str) -> bool:
    events = read_events(move.directory.journal_file)
    return any((event.event, event.phase, event.state) == ("phase", phase, state) for event in events)


# ------------------------------------------------------------------------------------------ without plan and journal


def held_by_hosts(directory: MigrationDirectory) -> str:
    """What the hosts of its fleet hold of a migration whose plan is lost, to be appended to a message; empty where
    nobody answers or has anything."""
    from midstream.fleet.fleet_file import load_fleet
    from midstream.hosts.host_pool import Hosts

    fleet: Fleet | None = None
    for path in (directory.fleet_file, None):
        try:
            fleet = load_fleet(path)
        except MidstreamError:
            continue
        if fleet.hosts:
            break
    if fleet is None or not fleet.hosts:
        return ""
    run_id = Plan.unknown(directory.migration).run_id
    hosts = Hosts(fleet)

    def ask(name: str) -> str:
        try:
            host = hosts.get(name)
            mover = host.call("runs.ownership.migration_lock", root=host.root, run_id=run_id)
            if mover is None or mover["migration"] != directory.migration:
                return ""
            value = host.call("runs.run_state.describe", root=host.root, run_id=run_id)["fence"]
            fence = records.Fence.from_json(value, "fence.json")
        except (HostError, records.RecordError):
            return ""  # this is said beside an error: what is not known is left out
        sealed = "" if fence.sealed_step is None else f", sealed at step {fence.sealed_step}"
        return f"{name} holds run {run_id} for it: epoch {fence.epoch}, holder {fence.owner}{sealed}"

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            told = [line for line in pool.map(ask, fleet.hosts) if line]
    finally:
        hosts.close()
    return "".join(f"; {line}" for line in told)
