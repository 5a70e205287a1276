"""Ownership of a run that is launched: its proof, consent, signed records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import DamagedError, Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.launch.earlier_copy import earlier_copy
from midstream.ownership import memory, signed_chain
from midstream.ownership.judgement import CLAIM, FOREIGN_HINT, FORMER, OWNER, Judgement, Standing
from midstream.ownership.owner_judge import HostCopy, OwnerJudge
from midstream.providers import fleet_slices
from midstream.stores.bucket_acceptance import acceptance, claim, owner_line
from midstream.stores.bucket_access import access_for
from midstream.stores.bucket_run import BucketRun
from midstream_core import records
from midstream_host.runs import ownership, run_state
from midstream_host.runs.run_state import OwnerRecords, RunDescription
from midstream_host.verify import tree


@dataclass(frozen=True)
class NewestCheckpoint:
    """Epoch and step of a run's newest usable checkpoint.

    Step None: there is none, or ``problem`` says why it is not known. ``claim``: what its bucket shows beyond the
    proven owner.
    """

    epoch: int = 0
    step: int | None = None
    problem: str = ""
    claim: str = ""


NO_CHECKPOINT = NewestCheckpoint()


@dataclass(frozen=True)
class DamagedCopy:
    """A copy with damaged records, and the records of its owner that can be read."""

    error: DamagedError
    shown: OwnerRecords


@dataclass(frozen=True)
class LaunchOwnership:
    """Proof of a run's owner before a launch, and the consent that it needs.

    Attributes:
        judgement: The judgement of all copies that answer.
        target: The target.
        reasons: What the user has to agree to, one line each.
        newest: The target's newest usable checkpoint.
        lost: All hosts of the signed owner answer, and none has anything of the run.
        behind: Host of the target with a fence from before its ownership, what that fence shows, and what shows the
            later one; empty: none.
        kept: How the run goes on from a later checkpoint that another host has; empty: no host has one.
    """

    judgement: Judgement
    target: str
    reasons: tuple[str, ...] = ()
    newest: NewestCheckpoint = NO_CHECKPOINT
    lost: bool = False
    behind: tuple[str, str, str] | tuple[()] = ()
    kept: str = ""

    def refuse_lost_state(self, runs: Sequence[RunDescription]) -> None:
        """Raise UsageError for a run that was migrated here and has no checkpoint.

        No engine starts it.
        """
        sealed = _sealed_step(runs)
        if sealed is None or self.newest.step is not None or self.newest.problem:
            return
        run_id = self.judgement.run_id
        raise UsageError(
            f"{self.target} has lost {run_id}, which was migrated there at step {sealed}: it shows no complete "
            "checkpoint",
            self.kept
            or f"put its disk back; no other host that answers has a checkpoint; midstream --checkpoints {run_id}",
        )

    def refuse_other_owner(self, host: str) -> None:
        """Raise UsageError where ``host`` of the target is not proven to own the run.

        Raises:
            UsageError: Another target owns the run, its records are of an operator that is not named, or its fence is
                an earlier copy: an engine would start under an ownership that has ended.
            MidstreamError: There are two signed histories, or what this machine remembers cannot be read.
        """
        judgement, head = self.judgement, self.judgement.head
        if judgement.problem:
            raise MidstreamError(judgement.problem, f"midstream --repair {judgement.run_id} shows them", Exit.REFUSED)
        if foreign := judgement.foreign(host):
            hint = FOREIGN_HINT.format(run_id=judgement.run_id, host=host)
            raise UsageError(f"{host}: {judgement.run_id}: {foreign}", hint)
        if self.behind:
            name, shown, later = self.behind
            raise UsageError(
                f"{name}: the fence of {judgement.run_id} is an earlier copy, restored perhaps ({shown}): {later}",
                f"midstream --repair {judgement.run_id} --on {name} shows what it would write, and from which evidence",
            )
        if head is None or head.owner == self.target:
            return
        run_id, since = judgement.run_id, "" if head.step is None else f" since step {head.step}"
        raise UsageError(
            f"run {run_id} belongs to {head.owner}{since} by a signed record (ownership {head.epoch}), not to "
            f"{self.target}",
            f"midstream --migrate {run_id} --to {self.target} migrates it here; if {head.owner} is certainly lost, "
            f"midstream --migrate {run_id} --to {self.target} --source-lost; --run-id starts another run",
        )

    def require_consent(self, agreed: bool, say: Callable[[str], None]) -> None:
        """Raise MidstreamError where the user has to agree, and has not."""
        for reason in self.reasons if agreed else ():
            say(f"agreed: {reason}")
        if self.reasons and not agreed:
            raise MidstreamError("; ".join(self.reasons), "--yes starts it all the same", Exit.REFUSED)


def judge_launch(
    hosts: HostPool,
    target: Target,
    run_id: str,
    copies: Sequence[tuple[str, RunDescription]],
    unreachable: Mapping[str, str],
    damaged: Mapping[str, DamagedCopy] | None = None,
    store: str = "",
) -> LaunchOwnership:
    """Judge who owns a run that is to be started on ``target``.

    Args:
        hosts: Connections to the fleet's hosts.
        target: The target.
        run_id: The run.
        copies: What each host that answers has of the run, where it can be read.
        unreachable: Hosts that do not answer, and why.
        damaged: What hosts have of it that cannot be read.
        store: Bucket that the config or a flag names for checkpoints; empty: that of the fleet file.
    """
    fleet = hosts.fleet
    shown = [
        HostCopy(name, run.fence, run.ownership)
        for name, run in copies
        if run.attempts or run.fence is not None or run.ownership
    ]
    damaged = damaged or {}
    shown += [HostCopy(name, copy.shown.fence, copy.shown.ownership) for name, copy in damaged.items()]
    judgement = OwnerJudge(fleet).judge(run_id, shown)
    here = [run for name, run in copies if name in target.hosts and run.attempts]
    newest = _newest(fleet, hosts.get(target.hosts[0]), judgement, here) if here else NO_CHECKPOINT
    owner = judgement.head.owner if judgement.head is not None else target.name
    empty = {name for name, _ in copies} - {copy.host for copy in shown}
    kept = _kept_elsewhere(target, judgement, copies, newest)
    older = _restored(target, judgement, here, newest) or _before_its_seal(target, judgement, here, newest)
    lost = owner != target.name and bool(judgement.owner_hosts) and empty.issuperset(judgement.owner_hosts)
    reasons = [
        *_unreachable_owners(fleet, judgement, unreachable, continues=bool(here)),
        *(_unreadable_owners(judgement, damaged) if here else ()),
        *(f"{reason}{f'; {kept}' if kept else ''}" for reason in older),
        *([newest.claim] if newest.claim else ()),
        *_past_in_bucket(fleet, target, run_id, copies, store or fleet.store_of(target.hosts[0])),
        *([_new_beside(judgement)] if lost else ()),
        *_unsigned(target, judgement, here),
    ]
    return LaunchOwnership(
        judgement, target.name, tuple(reasons), newest, lost, earlier_copy(judgement, shown, target), kept
    )


def _kept_elsewhere(
    target: Target, judgement: Judgement, copies: Sequence[tuple[str, RunDescription]], newest: NewestCheckpoint
) -> str:
    """Return how the run goes on from a former owner's later checkpoint, if any."""
    former = [
        (name, run) for name, run in copies if name not in target.hosts and judgement.standing(name).kind == FORMER
    ]
    others = [(entry.epoch, entry.step, name) for name, run in former for entry in run.usable]
    epoch, step, name = max(others, default=(0, -1, ""))
    if not name or (newest.step is not None and (epoch, step) <= (newest.epoch, newest.step)):
        return ""
    return f"midstream --repair {judgement.run_id} --on {name} makes {name} the owner, from step {step} on"


def sign_launch(
    run_id: str, target: str, fence: records.Fence, owned: LaunchOwnership, runs: Sequence[RunDescription]
) -> records.OwnershipChain:
    """Return the signed records of a run that is started on ``target``.

    The records are stored on this machine first. A new run gets its first record. A run without records is adopted: the
    user has agreed.
    """
    judgement = owned.judgement
    chain = judgement.chain
    exists = any(run.attempts for run in runs)
    if chain is None or not exists:
        consent = "a run without signed records was continued" if exists else ""
        chain = signed_chain.first_chain(run_id, target, fence, consent=consent, begun=judgement.begun)
    elif chain.head.epoch < fence.epoch:
        raise UsageError(
            f"run {run_id} was passed to {fence.owner} (ownership {fence.epoch}) without a signed record",
            "midstream --continue MIGRATION, on the machine that started the migration, finishes it",
        )
    started = fence.order if fence.epoch == chain.head.epoch else (0, 0)
    memory.remember(chain, step=owned.newest.step, epoch=owned.newest.epoch, host=target, started=started)
    return chain


def refuse_last(host: str, run_id: str, fence: records.Fence) -> None:
    """Raise UsageError for a fence after which no start can follow.

    No engine can use its numbers.
    """
    try:
        fence.refuse_last()
    except records.RecordError as error:
        hint = f"move fence.json there away; midstream --repair {run_id} --on {host} writes another"
        raise UsageError(f"{host}: {run_id}: {error}", hint) from None


def sign_import(host: Host, run_id: str) -> None:
    """Sign the first record of a run that was imported on a host.

    Raises:
        HostError: The host does not answer.
    """
    description = host.call(run_state.describe)(root=host.root, run_id=run_id)
    if description.ownership or description.fence is None:
        return  # imported before
    before = memory.recall(run_id)
    begun = before.chain.entries[0].time if before is not None else 0.0
    chain = signed_chain.first_chain(run_id, host.name, description.fence, begun=begun)
    memory.remember(chain)
    host.call(ownership.put_chain)(root=host.root, run_id=run_id, chain=chain.to_json())


def _unreachable_owners(
    fleet: Fleet, judgement: Judgement, unreachable: Mapping[str, str], *, continues: bool
) -> list[str]:
    """Return the unreachable hosts that may have the run.

    A machine that its provider reports as preempted is left out.
    """
    remembered = judgement.remembered is not None
    if not continues and not remembered:
        return []
    names = [name for name in unreachable if not fleet_slices.is_preempted(fleet, name)]
    if not names:
        return []
    them = ", ".join(f"{name} ({unreachable[name]})" for name in names)
    what = "may train it further" if continues else "may have it"
    verb = "does" if len(names) == 1 else "do"
    return [f"{count(len(names), 'host')} of the fleet that {what} {verb} not answer: {them}"]


def _unreadable_owners(judgement: Judgement, damaged: Mapping[str, DamagedCopy]) -> list[str]:
    """Return the hosts whose signed records cannot be read.

    They may name a later owner than those that can be read. Where this machine has seen the owner, there are none.
    """
    if judgement.remembered is not None or judgement.chain is None:
        return []
    return [
        f"{name} has signed records of {judgement.run_id} that cannot be read, and this machine has not seen its owner "
        f"before: they may name another one ({copy.shown.problem})"
        for name, copy in damaged.items()
        if copy.shown.problem
    ]


def _restored(
    target: Target, judgement: Judgement, here: Sequence[RunDescription], newest: NewestCheckpoint
) -> list[str]:
    """Return why the copy on the target looks like an older, restored one."""
    head, remembered = judgement.head, judgement.remembered
    if head is None or head.owner != target.name:
        return []
    reasons = [
        f"{host}: {judgement.standing(host).reason}"
        for host in target.hosts
        if judgement.standings.get(host, Standing(OWNER)).kind == CLAIM
    ]
    if not here:
        owned = f"{judgement.run_id}, which it owns by a signed record"
        return [f"{target.name} has no copy of {owned}: a new run would begin"]
    if remembered is not None and remembered.step is not None and remembered.chain.head.key == head.key:
        shown = (newest.epoch, -1 if newest.step is None else newest.step)
        if shown < (remembered.epoch, remembered.step):
            seen = f"this machine has seen step {remembered.step} on {remembered.host}"
            reasons.append(_older(target, judgement, newest, seen))
    return reasons


def _older(target: Target, judgement: Judgement, newest: NewestCheckpoint, seen: str) -> str:
    present = newest.problem or ("no complete checkpoint" if newest.step is None else f"step {newest.step}")
    return (
        f"{target.name} shows {present} of {judgement.run_id}, and {seen}: the copy is an older one, restored perhaps, "
        "and later steps would be given up"
    )


def _before_its_seal(
    target: Target, judgement: Judgement, here: Sequence[RunDescription], newest: NewestCheckpoint
) -> list[str]:
    """Return why the target goes on from before the step at which it got the run."""
    sealed = _sealed_step(here)
    if sealed is None or newest.problem or (-1 if newest.step is None else newest.step) >= sealed:
        return []
    return [_older(target, judgement, newest, f"got it at step {sealed}")]


def _sealed_step(runs: Sequence[RunDescription]) -> int | None:
    """Return the step at which the run was last migrated, by the fences of its copies."""
    steps = [run.fence.sealed_step for run in runs if run.fence is not None and run.fence.sealed_step is not None]
    return max(steps, default=None)


def _new_beside(judgement: Judgement) -> str:
    """Return the question for a new run whose name an owner has, who shows nothing."""
    head = judgement.head
    assert head is not None
    return (
        f"{judgement.run_id} belongs to {head.owner} by a signed record (ownership {head.epoch}), and {head.owner} has "
        "no copy of it: a new run would begin"
    )


def _past_in_bucket(
    fleet: Fleet, target: Target, run_id: str, copies: Sequence[tuple[str, RunDescription]], url: str
) -> list[str]:
    """Return the question for a run that is in the target's bucket alone.

    An engine there would continue it, and end the engine that trains it.
    """
    if not url or any(name in target.hosts and (run.attempts or run.fence) for name, run in copies):
        return []
    try:
        bucket = BucketRun(url, run_id, access_for(fleet, url))
        fence = bucket.fence()
        complete = [checkpoint.step for checkpoint in bucket.checkpoints() if checkpoint.complete]
    except MidstreamError:  # the hosts have identities of their own for it
        return []
    except records.RecordError as error:
        return [f"{url} has a run {run_id} that cannot be read ({error})"]
    if fence is None and not complete:
        return []
    owner = f"{fence.owner} owns it under ownership {fence.epoch}" if fence is not None else "its owner is not known"
    step = f"step {max(complete)}" if complete else "no complete checkpoint"
    return [
        f"{bucket.url} has {step} of a run of this name, and {target.name} has no copy of it: {owner}; it would be "
        "continued here, and its engine elsewhere ended"
    ]


def _unsigned(target: Target, judgement: Judgement, here: Sequence[RunDescription]) -> list[str]:
    """Return the question for a run that exists and has no signed record."""
    if judgement.signed or not here:
        return []
    return [f"{judgement.run_id} has no signed record of its owner: it becomes {target.name}'s, as its fence says"]


def _newest(fleet: Fleet, host: Host, judgement: Judgement, here: Sequence[RunDescription]) -> NewestCheckpoint:
    """Return the newest usable checkpoint of a run, on its hosts or in its bucket."""
    positions = [(entry.epoch, entry.step) for run in here for entry in run.usable]
    url, run_id = host.call(tree.store_of)(root=host.root, run_id=judgement.run_id), judgement.run_id
    if not url:
        return NewestCheckpoint(*max(positions, default=(0, None)))
    head, own = (
        judgement.head,
        max(filter(None, (run.fence for run in here)), key=lambda fence: fence.order, default=None),
    )
    try:
        bucket = BucketRun(url, run_id, access_for(fleet, url))
        fence = bucket.fence()
        accepted = acceptance(own, fence, head.epoch if head is not None else 0)
        stored = bucket.checkpoints(accepted=accepted.accepts)
    except (MidstreamError, records.RecordError) as error:
        return NewestCheckpoint(problem=f"no checkpoint, as {url} cannot be read ({error}),")
    positions = [(checkpoint.epoch, checkpoint.step) for checkpoint in stored if checkpoint.usable]
    shown = claim(bucket.url, fence, stored, accepted.proven, owner_line(head, host.name, own))
    return NewestCheckpoint(*max(positions, default=(0, None)), claim=shown)
