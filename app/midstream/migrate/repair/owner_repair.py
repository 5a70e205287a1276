"""Repair of a run's owner: lost records, and adoption by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.repair.repair_proposal import RepairProposal, UndeterminedError
from midstream.migrate.repair.run_evidence import FleetEvidence, store_of
from midstream.ownership import memory, signed_chain
from midstream.ownership.judgement import CLAIM, OWNER, UNSIGNED, Standing
from midstream.stores.bucket_acceptance import acceptance
from midstream_core import records
from midstream_core.json_types import int_of
from midstream_core.records.fence import LAST
from midstream_host.runs import ownership
from midstream_host.runs.record_repair import RunEvidence

FILE = "ownership.json"


def believed(gathered: FleetEvidence, host: str) -> FleetEvidence:
    """Return the evidence without hosts that only claim the run, but ``host`` itself.

    Without a signed record, another host's fence is evidence only where a migration has locked the run on ``host``, or
    this machine has a journal of one: otherwise any host could retire the owner.
    """
    judgement = gathered.judgement
    if judgement.signed:
        names = {name for name in gathered.hosts if name == host or judgement.is_believed(name)}
    else:
        own = gathered.hosts[host]
        handed_on = own.migration_lock is not None or bool(gathered.migrations) or own.lineage is None
        names = set(gathered.hosts) if handed_on else {host}
    left_out = {f"{name}: fence.json" for name in gathered.hosts if name not in names}
    head = judgement.head
    claimed = {} if head is None else _claimed_starts(gathered, head, {host, *judgement.owner_hosts})
    fences = {
        location: fence
        for location, fence in gathered.fences.items()
        if location not in left_out and (head is None or fence.epoch <= head.epoch + 1)
    }
    hosts = {name: host_evidence for name, host_evidence in gathered.hosts.items() if name in names}
    if head is not None:
        fences = _agreeing(gathered, fences, head, host)
        former = [name for name in hosts if name != host and name not in judgement.owner_hosts]
        # The owner's records come last: where two differ, they count.
        hosts = {name: _before(hosts.pop(name), head.epoch) for name in former} | hosts
    if head is not None:  # the signed records say what the owner's fence is, whatever is damaged elsewhere
        names = {name for name in names if name == host or name in judgement.owner_hosts}
    damaged = [name for name in gathered.damaged_fences if name in names or name not in gathered.hosts]
    return replace(gathered, hosts=hosts, fences=fences, damaged_fences=damaged, claimed_starts=claimed)


def _claimed_starts(gathered: FleetEvidence, head: records.OwnershipRecord, owners: set[str]) -> dict[int, str]:
    """Return starts of the ownership, and what shows each.

    The newest that this machine has seen, and the newest that another host has a checkpoint of. The latter is a claim
    that gives nothing to who makes it. If it is true, the owner's disk was restored, and another start with that number
    would accept the copy as its own.
    """
    starts = [
        checkpoint.start
        for name, host_evidence in gathered.hosts.items()
        for checkpoint in host_evidence.checkpoints
        if name not in owners
        and checkpoint.complete
        and checkpoint.epoch == head.epoch
        and checkpoint.start <= memory.MAX_START
    ]
    claimed = {max(starts): "another host's copy of a checkpoint"} if starts else {}
    seen = gathered.judgement.remembered
    if seen is not None and seen.chain.head.key == head.key and (seen.start_epoch, seen.start) > (head.epoch, 0):
        claimed[seen.start] = "what this machine has seen"
    return claimed


def _before(former: RunEvidence, epoch: int) -> RunEvidence:
    """Return what a former owner had before ``epoch``; it can show anything more."""
    lineage = former.lineage
    if lineage is not None:
        attempts = [entry.to_json() for entry in lineage.entries if entry.epoch < epoch]
        lineage = replace(lineage, attempts=attempts)
    return replace(
        former,
        lineage=lineage,
        checkpoints=[checkpoint for checkpoint in former.checkpoints if checkpoint.epoch < epoch],
        attempts=[
            replace(
                attempt,
                processes=[process for process in attempt.processes if process.status and process.status.epoch < epoch],
            )
            for attempt in former.attempts
        ],
    )


def _agreeing(
    gathered: FleetEvidence, fences: Mapping[str, records.Fence], head: records.OwnershipRecord, host: str
) -> dict[str, records.Fence]:
    """Leave out fences of former owners that differ from the signed record.

    Where the owner, a journal or a bucket has a copy, a former owner's is not needed.
    """
    trusted = {host, *gathered.judgement.owner_hosts}
    doubtful = {f"{name}: fence.json" for name in gathered.hosts if name not in trusted}
    better = any(fence.epoch >= head.epoch for location, fence in fences.items() if location not in doubtful)
    sealed = [
        checkpoint
        for checkpoint in gathered.hosts[host].checkpoints
        if checkpoint.complete and head.root_digest == checkpoint.root_digest
    ]
    agreeing: dict[str, records.Fence] = {}
    for location, fence in fences.items():
        if location in doubtful and fence.epoch == head.epoch:
            if better or (fence.owner, fence.sealed_step) != (head.owner, head.step):
                continue
            older = [start for start in fence.starts if int_of(start["epoch"]) < head.epoch]
            fence = replace(fence, start=0, starts=older)  # starts of this epoch are the owner's
            if not all(fence.accepts(checkpoint.epoch, checkpoint.step, checkpoint.start) for checkpoint in sealed):
                continue
        agreeing[location] = fence
    return agreeing


def lost_chain(gathered: FleetEvidence) -> tuple[records.OwnershipChain, list[str]]:
    """Return the signed records of a run, and the evidence for them.

    Raises:
        UndeterminedError: No host, nor this machine, has signed records of the run.
    """
    judgement = gathered.judgement
    if judgement.chain is None:
        raise UndeterminedError(judgement.problem or "no host that answers, nor this machine, has signed records of it")
    head = judgement.chain.head
    line = f"{len(judgement.chain.records)} signed records: {head.owner} owns it (ownership {head.epoch})"
    return judgement.chain, [line]


def adoption(fleet: Fleet, gathered: FleetEvidence, host: str) -> RepairProposal | None:
    """Propose that ``host`` becomes the run's signed owner; None where it is.

    The user has named it. The new record begins a chain of its own, and supersedes all others: it says what the user
    has agreed to.
    """
    judgement, host_evidence = gathered.judgement, gathered.hosts[host]
    standing, head, fence = _standing(gathered, host), judgement.head, host_evidence.fence
    if fence is None or not host_evidence.attempts:
        return None
    url = store_of(host_evidence.config)
    in_bucket = _bucket_epoch(gathered, url)
    claimed = standing.kind == OWNER and in_bucket > max(fence.epoch, head.epoch if head is not None else 0)
    behind = judgement.has_earlier_fence(host, fence)
    if not (standing.kind in (CLAIM, UNSIGNED) or claimed or behind or (head and host not in judgement.owner_hosts)):
        return None
    own = host in (fleet.hosts_of(fence.owner) if fence.owner in fleet.target_names else ())
    owner = fence.owner if own else host
    wrong = standing.reason or "it has no signed record of its owner"
    if claimed:
        wrong = f"{url} shows ownership {in_bucket} without a signed record"
    elif behind and head is not None:
        wrong = f"its fence is an earlier copy: no host has that of ownership {head.epoch}, which it has signed"
    evidence = [f"{host} shows {fence.owner}, ownership {fence.epoch}", *_unreachable(gathered)]
    saved = [
        (entry.epoch, entry.step)
        for entry in host_evidence.checkpoints
        if entry.complete and fence.accepts(entry.epoch, entry.step, entry.start)
    ]
    accepted = acceptance(fence, gathered.fences.get(f"{url}: fence.json"), 0)
    saved += [
        (epoch, step) for epoch, step, start in gathered.stored.get(url, ()) if accepted.accepts(epoch, step, start)
    ]
    if standing.kind == UNSIGNED and fence.epoch < LAST and (own or fence.sealed_step is None):
        value = _shown(fence, owner)
        return RepairProposal(
            host,
            gathered.run_id,
            FILE,
            wrong,
            value,
            tuple(evidence),
            "",
            fence,
            judgement.begun,
            max(saved, default=None),
        )
    if running := next((attempt.running for attempt in host_evidence.attempts if attempt.running), ""):
        missing = f"{running}; stop it first: what it does is in no lineage"
        return RepairProposal(host, gathered.run_id, FILE, wrong, missing=missing)
    if not saved:
        return RepairProposal(host, gathered.run_id, FILE, wrong, missing=f"{host} has no complete checkpoint of it")
    last = max(step for _, step in saved)
    seen = [fence.epoch, *([head.epoch] if head is not None else []), *_other_epochs(gathered), in_bucket]
    try:
        new = fence.sealed(max(seen) + 1, owner, last)
    except records.RecordError as error:
        where = f"the bucket {url}" if in_bucket == max(seen) else host
        return RepairProposal(host, gathered.run_id, FILE, wrong, missing=f"{error}; remove that record from {where}")
    evidence.append(f"its newest complete checkpoint is of step {last}: later steps of other hosts are given up")
    value = _shown(new, owner)
    return RepairProposal(
        host, gathered.run_id, FILE, wrong, value, tuple(evidence), "", new, judgement.begun, max(saved)
    )


def adopt(hosts: HostPool, proposal: RepairProposal) -> str:
    """Sign, remember and write an adoption that the user has agreed to.

    Returns the name of the file that was moved aside.

    Raises:
        HostError: The host does not answer.
        RemoteError: It refused: an attempt runs there, or its fence has risen.
    """
    fence, host = proposal.adopts, hosts.get(proposal.host)
    assert fence is not None
    assert proposal.value is not None
    owner = str(proposal.value["owner"])
    consent = f"adopted by name: {proposal.wrong}"
    chain = signed_chain.first_chain(proposal.run_id, owner, fence, consent=consent, begun=proposal.begun)
    epoch, step = proposal.newest or (0, None)
    memory.remember(chain, step=step, epoch=epoch, host=proposal.host)
    return host.call(ownership.adopt)(
        root=host.root, run_id=proposal.run_id, fence=fence.to_json(), chain=chain.to_json()
    )


def _standing(gathered: FleetEvidence, host: str) -> Standing:
    return gathered.judgement.standing(host)


def _shown(fence: records.Fence, owner: str) -> dict[str, object]:
    """Return what a proposal shows of the record that is signed once the user agrees."""
    return {"owner": owner, "epoch": fence.epoch, "step": fence.sealed_step}


def _unreachable(gathered: FleetEvidence) -> Sequence[str]:
    return [f"{name} does not answer, and may train it further ({why})" for name, why in gathered.unreachable.items()]


def _other_epochs(gathered: FleetEvidence) -> list[int]:
    """Return the epochs of fences that are on no host: a bucket's, a journal's."""
    on_hosts = {f"{name}: fence.json" for name in gathered.hosts}
    return [fence.epoch for location, fence in gathered.fences.items() if location not in on_hosts]


def _bucket_epoch(gathered: FleetEvidence, url: str) -> int:
    """Return the highest epoch that a bucket shows; 0 where it shows none."""
    fence = gathered.fences.get(f"{url}: fence.json")
    epochs = [epoch for epoch, *_ in gathered.stored.get(url, ())]
    return max([*epochs, fence.epoch if fence is not None else 0])
