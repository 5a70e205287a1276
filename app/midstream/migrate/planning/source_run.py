"""Copy of a run to migrate: its proven owner's. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.errors import Exit, HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.migrate.journal.request import Request
from midstream.ownership.judgement import FOREIGN_HINT, OWNER, Judgement
from midstream.suggestions import nearest_run
from midstream.watch.damaged_runs import refuse_damaged
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core.listed_checkpoint import ListedCheckpoint


def find_run(fleet: Fleet, snapshot: Snapshot, request: Request) -> RunView:
    """Return the copy to migrate: the proven owner's.

    Without any signed record, return the copy of the highest epoch on answering hosts.

    Raises:
        UsageError: There is none, or its fence names another owner that is not in the fleet or has no copy.
        HostError: Its fence names an owner that does not answer.
    """
    unreachable = [host for host in snapshot.hosts if host.link != "live"]
    copies = [copy for copy in snapshot.copies(request.run_id) if not request.source or copy.host == request.source]
    if not copies:
        run_ids = sorted({run.run_id for run in snapshot.runs})
        hint = nearest_run(request.run_id, run_ids, [host.name for host in unreachable])
        raise UsageError(f"no run {request.run_id!r}" + (f" on {request.source}" if request.source else ""), hint)
    judgement = snapshot.judgement(request.run_id)
    if judgement.problem:
        raise MidstreamError(judgement.problem, f"midstream --repair {request.run_id} shows them", Exit.REFUSED)
    if judgement.signed:  # what a host only claims is never planned from, and blocks nothing
        refuse_damaged([] if request.source_lost else snapshot.deciding(request.run_id))
        copies = [copy for copy in copies if judgement.is_believed(copy.host) and (copy.epoch or copy.damaged)]
    run = _owned(fleet, copies) if copies else None
    refuse_damaged(copies if not judgement.signed else [run] if run is not None else [])
    if run is None or not request.source_lost:
        _check_signed_owner(fleet, snapshot, judgement, run)
    if run is None:
        raise UsageError(f"no host shows a copy of {request.run_id} that is proven")
    if foreign := judgement.foreign(run.host):
        raise UsageError(
            f"{run.host}: {request.run_id}: {foreign}", FOREIGN_HINT.format(run_id=run.run_id, host=run.host)
        )
    if not request.source_lost:
        _check_owner(fleet, snapshot, run)
    return run


def ownership_consent(
    fleet: Fleet, snapshot: Snapshot, run: RunView, checkpoint: ListedCheckpoint | None = None
) -> tuple[str, ...]:
    """Return the consent for an owner, or a newest state, that is not proven.

    ``checkpoint``: the one to continue from; None: the run's present state.
    """
    judgement = snapshot.judgement(run.run_id)
    if snapshot.owners is None:
        return ()
    if judgement.signed:
        return _older_state(judgement, run, checkpoint)
    owner = run.fence.owner if run.fence is not None and run.fence.owner in fleet.target_names else run.host
    return (f"{run.run_id} has no signed record of its owner: {owner}, on {run.host}, becomes its signed owner",)


def _older_state(judgement: Judgement, run: RunView, checkpoint: ListedCheckpoint | None) -> tuple[str, ...]:
    """Return the consent for a state older than one that this machine has seen."""
    seen, head = judgement.remembered, judgement.head
    if seen is None or seen.step is None or head is None or seen.chain.head.key != head.key or run.fence is None:
        return ()
    shown = checkpoint.step if checkpoint is not None else run.step or 0
    if shown >= seen.step or not run.fence.accepts_epoch(seen.epoch, seen.step):
        return ()
    return (
        f"{run.host} has step {shown} of {run.run_id}, and this machine has seen step {seen.step} on {seen.host}: "
        f"steps {shown + 1} to {seen.step} are given up",
    )


def _check_signed_owner(fleet: Fleet, snapshot: Snapshot, judgement: Judgement, run: RunView | None) -> None:
    """Refuse a copy that is not the signed owner's.

    Raises:
        HostError: The owner does not answer.
        UsageError: It has no copy, or shows an older one.
    """
    head = judgement.head
    if head is None or (run is not None and judgement.standing(run.host).kind == OWNER):
        return
    run_id = judgement.run_id
    belongs = f"run {run_id} belongs to {head.owner} by a signed record (ownership {head.epoch})"
    lost = _if_lost(fleet, run_id, head.owner)
    unreachable = [host for host in snapshot.hosts if host.name in judgement.owner_hosts and host.link != "live"]
    if unreachable:
        raise HostError(
            f"{belongs}, which does not answer: {unreachable[0].error or unreachable[0].link}",
            f"restore the connection; {lost}",
        )
    shown = [
        f"{host}: {judgement.standing(host).reason}" for host in judgement.owner_hosts if host in judgement.standings
    ]
    if shown:
        raise UsageError(
            f"{belongs}; {'; '.join(shown)}",
            f"midstream --repair {run_id} --on {head.owner} shows what is left; {lost}",
        )
    if run is None:
        claims = [f"{host}: {standing.reason}" for host, standing in judgement.standings.items()]
        raise UsageError(f"{belongs}, and no host shows its copy; {'; '.join(claims)}", lost)


def _if_lost(fleet: Fleet, run_id: str, owner: str) -> str:
    """Return the hint for an owner whose machine is lost, with the command."""
    store = fleet.store_of_target(owner) if owner in fleet.target_names else ""
    source = f"its checkpoints in {store}" if store else "another copy"
    command = f"midstream --migrate {run_id} --to TARGET --source-lost"
    return f"if {owner} is certainly lost, {command} continues from {source}"


def _owned(fleet: Fleet, copies: Sequence[RunView]) -> RunView:
    """Return the owner's copy among those of the highest epoch, even if just started."""
    first = copies[0]
    owner = first.fence.owner if first.fence is not None else ""
    hosts = fleet.hosts_of(owner) if owner in fleet.target_names else ()
    return next((copy for copy in copies if copy.host in hosts and copy.epoch == first.epoch), first)


def _check_owner(fleet: Fleet, snapshot: Snapshot, run: RunView) -> None:
    """Refuse a copy that its fence has handed to another target: a second lineage."""
    if run.fence is None or run.fence.sealed_step is None:
        return  # never migrated: it belongs to the host that has it, under any name
    owner = run.fence.owner
    owner_hosts = fleet.hosts_of(owner) if owner in fleet.target_names else ()
    if not owner or run.host in owner_hosts:
        return
    lost = _if_lost(fleet, run.run_id, owner)
    belongs = f"run {run.run_id} on {run.host} was handed to {owner} (ownership {run.epoch})"
    if owner in fleet.unavailable:
        raise UsageError(f"{belongs}: {fleet.unavailable[owner].message}", lost)
    if not owner_hosts:
        if run.status is not None and run.status.epoch == run.epoch:  # it has trained there since
            raise UsageError(
                f"run {run.run_id} has trained on {run.host} as {owner} (ownership {run.epoch}), which the "
                "fleet file does not name",
                f"name that host or target {owner} there again: the records of the run have this name",
            )
        raise UsageError(f"{belongs}, which the fleet file does not name", f"add it there; {lost}")
    unreachable = [host for host in snapshot.hosts if host.name in owner_hosts and host.link != "live"]
    if unreachable:
        raise HostError(
            f"{belongs}, which does not answer: {unreachable[0].error or unreachable[0].link}",
            f"restore the connection; {lost}",
        )
    raise UsageError(
        f"{belongs}, which has no copy",
        f"check root: of {owner} in the fleet file; midstream --continue MIGRATION, on the machine that started it, "
        f"finishes an open migration; if that machine's state directory is lost, or {lost.removeprefix('if ')}",
    )
