"""Recheck of a certificate from the hosts' present records and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.counts import count
from midstream.errors import HostError, MidstreamError
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.journal.facts import Sealed, required
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import mode_of, present_mode
from midstream.migrate.proof import copy_certificate, live_certificate, restore_evidence, trainer_certificate
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from midstream_host.runs import run_state


def recheck(hosts: HostPool, view: MigrationView) -> Iterator[Check]:
    """Check each claim, then each copy of the checkpoint, then the lineage.

    PASS: verified again. WARN: cannot be verified any more, with the reason. FAIL: the evidence contradicts the
    certificate.

    Raises:
        MidstreamError: The migration has no certificate.
    """
    proof, plan = view.certificate, view.plan
    if proof is None:
        raise MidstreamError(
            f"migration {view.migration} has no certificate ({view.state})",
            f"midstream --continue {view.migration} continues it" if view.open else "there is nothing to check",
        )
    sealed = required(view.facts.sealed, "sealed")
    source, target = _reach(hosts, plan.source), _reach(hosts, plan.target_host)
    yield from _claims(source, target, view, proof, sealed)
    for role, host, store in (("source", source, plan.route.source_store), ("target", target, plan.route.target_store)):
        yield _objects(role, host, proof, hosts, store)
    yield _lineage(target, plan, proof)


def _reach(hosts: HostPool, name: str) -> Host | str:
    """Return the host, or the reason why it does not answer."""
    try:
        host = hosts.get(name)
        host.connect()
    except HostError as error:
        return f"{name}: {error.message}"
    return host


def _claims(
    source: Host | str, target: Host | str, view: MigrationView, proof: Certificate, sealed: Sealed
) -> Iterator[Check]:
    plan = view.plan
    if isinstance(target, str):
        for claim in proof.claims:
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {target}")
        return
    restored = restore_evidence.restored(
        target, plan.run_id, sealed, required(view.facts.target_attempt, "target_attempt")
    )
    if present_mode(plan.mode, view.facts.fallback_reason).replays:
        yield from _live_claims(source, target, view, proof, sealed)
        return
    if restored is None:
        for claim in proof.claims:
            reason = f"{target.name} no longer has its restore evidence"
            yield Check(claim.name, WARN, f"was {claim.verdict}; {reason}")
        return
    attempt, restore = restored
    last = proof.step + max(plan.policy.certify_steps, 1) - 1
    source_rows = []
    if not isinstance(source, str):
        source_rows = restore_evidence.losses(source, plan.run_id, sealed.attempt, proof.step, last)
    target_rows = restore_evidence.losses(target, plan.run_id, attempt, proof.step, last)
    source_host = None if isinstance(source, str) else source
    if plan.trainer is None:
        versions = (
            restore_evidence.versions(source_host, plan.run_id, sealed.attempt),
            restore_evidence.versions(target, plan.run_id, attempt),
        )
        issued = copy_certificate.certify(plan, sealed, restore, target_rows, source_rows, versions=versions)
    else:
        evidence = trainer_certificate.read_evidence(source_host, target, plan, sealed, attempt, view.facts)
        issued = trainer_certificate.certify(plan, sealed, restore, evidence)
    again = {claim.name: claim for claim in issued.claims}
    for claim in proof.claims:
        now = again[claim.name]
        if claim.name == "data" and now.verdict != VERIFIED and not target_rows:
            reason = f"{target.name} no longer has the losses of attempt {attempt}"
            yield Check(claim.name, WARN, f"was {claim.verdict}; {reason}")
        elif now.verdict == claim.verdict:
            yield Check(claim.name, PASS, f"{now.verdict} again: {now.statement}")
        elif now.verdict == NOT_CHECKED:
            why = source if isinstance(source, str) else now.statement
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {why}")
        else:
            state = FAIL if now.verdict == CLAIM_FAILED else WARN
            yield Check(claim.name, state, f"was {claim.verdict}, now {now.verdict}: {now.statement}")


def _live_claims(
    source: Host | str, target: Host, view: MigrationView, proof: Certificate, sealed: Sealed
) -> Iterator[Check]:
    """Check the claims of a live migration, from the evidence of the replay."""
    source_host = None if isinstance(source, str) else source
    now = live_certificate.gather(source_host, target, view.plan, sealed, view.facts, drift_timeout=1.0)
    again = {claim.name: claim for claim in now.claims} if now is not None else {}
    for claim in proof.claims:
        claim_now = again.get(claim.name)
        if claim_now is None or (source_host is None and claim.name in ("data", "continuity")):
            why = source if isinstance(source, str) else f"{target.name} no longer has its restore evidence"
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {why}")
        elif claim_now.verdict == claim.verdict:
            yield Check(claim.name, PASS, f"{claim_now.verdict} again: {claim_now.statement}")
        else:
            state = FAIL if claim_now.verdict == CLAIM_FAILED else WARN
            yield Check(claim.name, state, f"was {claim.verdict}, now {claim_now.verdict}: {claim_now.statement}")


def _objects(role: str, host: Host | str, proof: Certificate, hosts: HostPool, store: str) -> Check:
    """Hash the sealed checkpoint on its host or in its bucket; compare root digests."""
    name = f"{role}'s checkpoint"
    if isinstance(host, str):
        return Check(name, WARN, f"not checked: {host}")
    checkpoints = checkpoint_store_of(hosts.fleet, host, proof.run_id, store)
    where = checkpoints.endpoint(proof.checkpoint)
    if not checkpoints.has(proof.checkpoint):
        return Check(name, WARN, f"{where} is no longer there")
    manifest = checkpoints.manifest(proof.checkpoint)
    if manifest.hosts:
        return _shares(name, host, manifest, proof, hosts)
    report = checkpoints.verify(proof.checkpoint)
    if report.problems:
        # A problem of an object is more specific than that of the manifest.
        path, what = max(report.problems, key=lambda problem: problem[0] != records.MANIFEST)
        return Check(name, FAIL, f"{where}/{path}: {what}", "restore from the other copy")
    digest = report.root_digest or "none"
    if not report.ok or digest != proof.root_digest:
        return Check(name, FAIL, f"{where} has root digest {digest}, certified is {proof.root_digest}")
    return Check(name, PASS, f"{where}: {count(report.objects, 'object')} hashed again, root digest {digest[:12]}")


def _shares(name: str, first: Host, manifest: records.Manifest, proof: Certificate, hosts: HostPool) -> Check:
    """As `_objects` of a spread checkpoint: hash each host's share on that host."""
    for share in manifest.spread_hosts:
        host = _reach(hosts, share.host)
        if isinstance(host, str):
            return Check(name, WARN, f"not checked: {host}")
        elsewhere = {entry.path for entry in manifest.object_entries if entry.host not in ("", share.host)}
        share_problems = verify_objects(host, share.directory).problems
        problems = [(path, what) for path, what in share_problems if path not in elsewhere and path != records.MANIFEST]
        if problems:
            path, what = problems[0]
            return Check(name, FAIL, f"{host.name}:{share.directory}/{path}: {what}", "restore from the other copy")
    directory = records.RunPaths(first.root, proof.run_id).checkpoint(proof.checkpoint)
    path = f"{directory}/{records.TRAIN}"
    train = decode_file(first.call(run_state.read_text)(path=path), f"{first.name}: {path}")
    hashes = {entry.path: entry.sha256 for entry in manifest.object_entries}
    digest = records.root_digest(manifest.array_entries, hashes, train["state"])
    where = ", ".join(share.host for share in manifest.spread_hosts)
    if digest != proof.root_digest:
        return Check(name, FAIL, f"spread over {where}: root digest {digest}, certified is {proof.root_digest}")
    return Check(
        name, PASS, f"spread over {where}: {count(len(hashes), 'object')} hashed again, root digest {digest[:12]}"
    )


def _lineage(target: Host | str, plan: Plan, proof: Certificate) -> Check:
    """Check that the run's records continue from the seal under the certified epoch."""
    if isinstance(target, str):
        return Check("lineage", WARN, f"not checked: {target}")
    described = target.call(run_state.describe)(root=target.root, run_id=plan.run_id)
    if not described.fence or not described.lineage:
        return Check("lineage", WARN, f"{target.name} no longer has the run's lineage")
    fence, lineage = described.fence, described.lineage
    # A live migration's entry has the checkpoint that the replay began with, and the certified step as its first.
    begun = [
        entry
        for entry in lineage.entries
        if entry.epoch == proof.epoch
        and (entry.checkpoint == proof.checkpoint or (mode_of(plan.mode).replays and entry.first_step == proof.step))
    ]
    if not begun:
        return Check("lineage", FAIL, f"no attempt of ownership {proof.epoch} began with {proof.checkpoint}")
    if not fence.accepts_epoch(proof.epoch, proof.step + 1):
        sealed = f"ownership {proof.epoch} past step {proof.step} is not accepted any more"
        return Check("lineage", WARN, f"{sealed}: the run continued on {fence.owner} (ownership {fence.epoch})")
    first = begun[0].attempt
    return Check("lineage", PASS, f"attempt {first} continued from {proof.checkpoint} under ownership {proof.epoch}")
