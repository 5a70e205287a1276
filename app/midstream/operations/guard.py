"""Guard a run: migrate it when its machine is lost, or will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError
from midstream.operations.fleet_snapshot import unproven_run

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView
    from midstream_core.json_types import JsonValue


@dataclass(frozen=True)
class GuardRequest:
    """A run, and what its guard may do."""

    run_id: str
    targets: tuple[str, ...]  # that may take the run
    tries: int  # number of migrations that the guard may start
    agreed: bool = False  # to what it needs consent to, and to pods being created
    lead: float | None = None  # seconds before a job's time limit at which it is handed on; None: as estimated


@dataclass(frozen=True)
class GuardFace:
    """Functions by which a guard reports, and asks the user."""

    report: Callable[[dict[str, JsonValue]], object]  # receives each event, as it is printed with --json
    begun: Callable[[str, bool], object]  # receives where the run is, and whether any target can take it from there
    agree: Callable[[Sequence[str], RunView], bool]  # receives what needs consent, line by line


def guard(hosts: HostPool, request: GuardRequest, face: GuardFace) -> Exit:
    """Guard a run until it ends, or needs the user.

    Raises:
        UsageError: There is no such run, or no such target.
        MidstreamError: The owner of the run is not proven, the user has not agreed, or no target took the run.
    """
    from midstream.json_events.notifications import NOTIFICATIONS
    from midstream.migrate.failover import guard_consent
    from midstream.migrate.failover.guard import Guard
    from midstream.migrate.notify import notify_all
    from midstream.watch.watcher import SNAPSHOT_TIMEOUT, Watcher

    fleet, run_id = hosts.fleet, request.run_id
    for name in request.targets:
        if name not in fleet.unavailable:  # an unavailable target is skipped later
            fleet.target(name)  # reports a wrong name now, not at a preemption

    def report(event: dict[str, JsonValue]) -> None:
        face.report(event)
        if "migration" not in event and event["kind"] in NOTIFICATIONS:  # a migration notifies by its own process
            notify_all(fleet, event)

    watch = Watcher(fleet, hosts)
    watch.start()
    try:
        allowed = request.tries, report, request.agreed, request.lead
        watching = Guard(fleet, hosts, watch, run_id, request.targets, *allowed)
        reached = watch.wait_for(
            lambda at: bool(at.believed(run_id)) and not watching.evidence.owner(at), timeout=SNAPSHOT_TIMEOUT
        )
        snapshot = reached or watch.snapshot()
        judgement = snapshot.judgement(run_id)
        if judgement.problem:
            raise MidstreamError(judgement.problem, f"midstream --repair {run_id} shows them", Exit.REFUSED)
        copies = snapshot.believed(run_id)
        if not copies:
            raise unproven_run(run_id, snapshot)
        proposal = guard_consent.propose(hosts, snapshot, copies[0], request.targets)
        agreed = face.agree(proposal.lines, copies[0]) if proposal.lines else request.agreed
        guard_consent.require(proposal, agreed)
        watching.consent = guard_consent.accept(hosts, snapshot, proposal)
        face.begun(watching.evidence.owner(snapshot) or copies[0].host, watching.has_target(copies[0]))
        return watching.run()
    finally:
        watch.stop()
