"""A certificate checked again, long after the move: from what lies on the hosts today, not from what was noted then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from midstream.errors import HostError, MidstreamError
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.model import (
    CLAIM_FAILED,
    FAIL,
    LIVE,
    NOT_CHECKED,
    PASS,
    VERIFIED,
    WARN,
    Certificate,
    Check,
    Plan,
)
from midstream.migrate.proof import certificate, live_certificate, restore_evidence
from midstream.transfer import verify_objects
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts
    from midstream.migrate.model import MigrationView


def recheck(hosts: Hosts, view: MigrationView) -> Iterator[Check]:
    """One check a claim, then one for each copy of the checkpoint and one for the lineage. PASS: shown anew. WARN: can
    no longer be shown, and why. FAIL: what is there contradicts the certificate. MidstreamError where the migration
    has no certificate."""
    proof, plan = view.certificate, view.plan
    if proof is None:
        raise MidstreamError(
            f"migration {view.migration} has no certificate ({view.state})",
            f"midstream --continue {view.migration} goes on with it" if view.open else "there is nothing to check",
        )
    sealed = _fact(view, "sealed")
    source, target = _reach(hosts, plan.source), _reach(hosts, plan.target_host)
    yield from _claims(source, target, view, proof, sealed)
    for role, host, store in (("source", source, plan.source_store), ("target", target, plan.target_store)):
        yield _objects(role, host, proof, hosts, store)
    yield _lineage(target, plan, proof)


def _fact(view: MigrationView, name: str) -> Any:
    """The newest value that the journal has for a fact."""
    for event in reversed(view.events):
        if name in event.detail:
            return event.detail[name]
    raise MidstreamError(
        f"the journal of {view.migration} does not say {name!r}", "restore journal.jsonl from a backup"
    )


def _reach(hosts: Hosts, name: str) -> Host | str:
    """The host, or why it does not answer."""
    try:
        host = hosts.get(name)
        host.connect()
    except HostError as error:
        return f"{name}: {error.message}"
    return host


def _claims(
    source: Host | str, target: Host | str, view: MigrationView, proof: Certificate, sealed: Mapping[str, Any]
) -> Iterator[Check]:
    plan = view.plan
    if isinstance(target, str):
        for claim in proof.claims:
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {target}")
        return
    found = restore_evidence.restored(target, plan.run_id, sealed, int(_fact(view, "target_attempt")))
    if plan.mode == LIVE and not any("fallen_back" in event.detail for event in view.events):
        yield from _overtaken(source, target, view, proof, sealed)
        return
    if found is None:
        for claim in proof.claims:
            gone = f"{target.name} no longer has what it wrote of restoring"
            yield Check(claim.name, WARN, f"was {claim.verdict}; {gone}")
        return
    attempt, restore = found
    last = proof.step + max(plan.certify_steps, 1) - 1
    theirs = []
    if not isinstance(source, str):
        theirs = restore_evidence.losses(source, plan.run_id, sealed["attempt"], proof.step, last)
    ours = restore_evidence.losses(target, plan.run_id, attempt, proof.step, last)
    again = {claim.name: claim for claim in certificate.certify(plan, sealed, restore, ours, theirs).claims}
    for claim in proof.claims:
        now = again[claim.name]
        if claim.name == "data" and now.verdict != VERIFIED and not ours:
            gone = f"{target.name} no longer has the losses of attempt {attempt}"
            yield Check(claim.name, WARN, f"was {claim.verdict}; {gone}")
        elif now.verdict == claim.verdict:
            yield Check(claim.name, PASS, f"{now.verdict} again: {now.statement}")
        elif now.verdict == NOT_CHECKED:
            why = source if isinstance(source, str) else now.statement
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {why}")
        else:
            state = FAIL if now.verdict == CLAIM_FAILED else WARN
            yield Check(claim.name, state, f"was {claim.verdict}, now {now.verdict}: {now.statement}")


def _overtaken(
    source: Host | str, target: Host, view: MigrationView, proof: Certificate, sealed: Mapping[str, Any]
) -> Iterator[Check]:
    """The claims of a live migration: its evidence is the replay's."""
    facts = {name: _fact(view, name) for name in ("rehearsal", "standby_attempt", "crossing_step")}
    there = None if isinstance(source, str) else source
    now = live_certificate.gather(there, target, view.plan, sealed, facts, patience=1.0)
    again = {claim.name: claim for claim in now.claims} if now is not None else {}
    for claim in proof.claims:
        found = again.get(claim.name)
        if found is None or (there is None and claim.name in ("data", "continuity")):
            why = source if isinstance(source, str) else f"{target.name} no longer has what it wrote"
            yield Check(claim.name, WARN, f"was {claim.verdict}; not checked: {why}")
        elif found.verdict == claim.verdict:
            yield Check(claim.name, PASS, f"{found.verdict} again: {found.statement}")
        else:
            yield Check(claim.name, FAIL, f"was {claim.verdict}, now {found.verdict}: {found.statement}")


def _objects(role: str, host: Host | str, proof: Certificate, hosts: Hosts, store: str) -> Check:
    """Every byte of the sealed checkpoint hashed again where it lies, against the certificate's root digest."""
    name = f"{role}'s checkpoint"
    if isinstance(host, str):
        return Check(name, WARN, f"not checked: {host}")
    shelf = checkpoint_store_of(hosts.fleet, host, proof.run_id, store)
    where = shelf.endpoint(proof.checkpoint)
    if not shelf.has(proof.checkpoint):
        return Check(name, WARN, f"{where} is no longer there")
    manifest = shelf.manifest(proof.checkpoint)
    if manifest.hosts:
        return _shares(name, host, manifest, proof, hosts)
    report = shelf.verify(proof.checkpoint)
    if report.problems:
        # What is wrong with an object says more than that the manifest no longer adds up.
        path, what = max(report.problems, key=lambda problem: problem[0] != records.MANIFEST)
        return Check(name, FAIL, f"{where}/{path}: {what}", "restore from the other copy")
    found = report.root_digest or "none"
    if not report.ok or found != proof.root_digest:
        return Check(name, FAIL, f"{where} has root digest {found}, certified was {proof.root_digest}")
    return Check(name, PASS, f"{where}: {report.objects} objects hashed again, root digest {found[:12]}")


def _shares(name: str, first: Host, manifest: records.Manifest, proof: Certificate, hosts: Hosts) -> Check:
    """The same of a spread checkpoint: each host's share where it lies."""
    for share in manifest.spread_hosts:
        host = _reach(hosts, share.host)
        if isinstance(host, str):
            return Check(name, WARN, f"not checked: {host}")
        away = {entry.path for entry in manifest.object_entries if entry.host not in ("", share.host)}
        found = verify_objects(host, share.directory).problems
        wrong = [(path, what) for path, what in found if path not in away and path != records.MANIFEST]
        if wrong:
            path, what = wrong[0]
            return Check(name, FAIL, f"{host.name}:{share.directory}/{path}: {what}", "restore from the other copy")
    directory = records.RunPaths(first.root, proof.run_id).checkpoint(proof.checkpoint)
    path = f"{directory}/{records.TRAIN}"
    train = decode_file(first.call("runs.run_state.read_text", path=path), f"{first.name}: {path}")
    hashes = {entry.path: entry.sha256 for entry in manifest.object_entries}
    digest = records.root_digest(manifest.array_entries, hashes, train["state"])
    where = ", ".join(share.host for share in manifest.spread_hosts)
    if digest != proof.root_digest:
        return Check(name, FAIL, f"spread over {where}: root digest {digest}, certified was {proof.root_digest}")
    return Check(name, PASS, f"spread over {where}: {len(hashes)} objects hashed again, root digest {digest[:12]}")


def _lineage(target: Host | str, plan: Plan, proof: Certificate) -> Check:
    """Whether the run's own records still say that it went on from the seal under the certified epoch."""
    if isinstance(target, str):
        return Check("lineage", WARN, f"not checked: {target}")
    described = target.call("runs.run_state.describe", root=target.root, run_id=plan.run_id)
    if not described["fence"] or not described["lineage"]:
        return Check("lineage", WARN, f"{target.name} no longer has the run's lineage")
    fence = records.Fence.from_json(described["fence"], f"{target.name}: fence.json of {plan.run_id}")
    lineage = records.Lineage.from_json(described["lineage"], f"{target.name}: lineage.json of {plan.run_id}")
    # What was overtaken has the checkpoint that the replay began with: it became the run at the certified step.
    begun = [
        entry
        for entry in lineage.entries
        if entry.epoch == proof.epoch
        and (entry.checkpoint == proof.checkpoint or (plan.mode == LIVE and entry.first_step == proof.step))
    ]
    if not begun:
        return Check("lineage", FAIL, f"no attempt of epoch {proof.epoch} began with {proof.checkpoint}")
    if not fence.accepts(proof.epoch, proof.step + 1):
        taken = f"nothing of epoch {proof.epoch} past step {proof.step} counts any more"
        return Check("lineage", WARN, f"{taken}: the run went on with {fence.owner} (epoch {fence.epoch})")
    first = begun[0].attempt
    return Check("lineage", PASS, f"attempt {first} went on from {proof.checkpoint} under epoch {proof.epoch}")
