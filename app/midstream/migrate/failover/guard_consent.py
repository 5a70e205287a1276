"""Consent of a guard's user: the run, and what another target may execute of it.

The consent is recorded when the guard starts. A later plan is compared with it: what the user has not seen is not
executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from midstream.errors import Exit, HostError, MidstreamError
from midstream.hosts.host_pool import HostPool
from midstream.launch.engine_flags import engine_flags
from midstream.migrate import host_files
from midstream.migrate.failover import job_restart
from midstream.migrate.journal.plan import Plan
from midstream.migrate.planning.source_run import ownership_consent
from midstream.migrate.planning.trainer_plan import travelling_text
from midstream.migrate.source_config import check_config
from midstream.ownership import memory, signed_chain
from midstream.trainers.run_file_parser import from_value
from midstream.watch.snapshot import LIVE, RunView, Snapshot
from midstream_core import records
from midstream_core.json_types import JsonObject, RunConfig
from midstream_host.allowlist import shown
from midstream_host.driver.run_file import is_run_file
from midstream_host.runs import ownership
from midstream_host.verify import tree

ADOPTED = "a guard was started for a run without signed records"


class NotAgreedError(MidstreamError):
    """A migration needs consent that the user of the guard has not given."""


@dataclass(frozen=True)
class GuardConsent:
    """Consent that the user of a guard has given.

    Attributes:
        key: Key of the run's signed records; empty for a run without any.
        config: The run's ``run.yaml``, with the values that need consent; None: nothing of it.
        run_text: Text of another trainer's run file, as a target would get it: its commands, and the digests of its
            files; empty: none.
        lines: Lines that were shown when the guard started.
    """

    key: str = ""
    config: RunConfig | None = None
    run_text: str = ""
    lines: tuple[str, ...] = ()

    def check(self, plan: Plan, key: str) -> None:
        """Refuse a plan that needs another consent.

        Args:
            plan: The plan of a migration.
            key: Key of the run's signed records now.

        Raises:
            NotAgreedError: It does.
        """
        agree = f"midstream --migrate {plan.run_id} --to {plan.target} shows it and asks"
        if self.key and key != self.key:
            raise NotAgreedError(f"{plan.run_id} is another run of this name than the one that is guarded", agree)
        if plan.trainer is not None:
            if plan.trainer.run_text != self.run_text:
                before, now = _digest(self.run_text), _digest(plan.trainer.run_text)
                what = f"the run file of {plan.source} (digest {now}) is not the one that was agreed to ({before})"
                line = f"{plan.target} would execute: {shown(' '.join(plan.trainer.run_file.resume))}"
                raise NotAgreedError(f"{what}; {line}", agree)
            return  # its lines follow from the text
        agreed = {*self.lines, *self._config_lines(plan)}
        for line in plan.policy.consent:
            if line not in agreed:
                raise NotAgreedError(f"not agreed to when the guard was started: {line}", agree)

    def _config_lines(self, plan: Plan) -> tuple[str, ...]:
        """Return the lines that the agreed config has, wherever the run is now."""
        if self.config is None:
            return ()
        stores = tuple(store for store in (plan.route.source_store, plan.route.target_store) if store)
        try:
            return check_config(self.config, plan.source, plan.target, stores, engine_flags(plan.shape.overrides))
        except MidstreamError:
            return ()  # the agreed config is refused for these stores: none of its lines can be the plan's


@dataclass(frozen=True)
class Proposal:
    """Consent that a guard's user is prompted for, with its lines."""

    run: RunView
    consent: GuardConsent
    owner: str  # becomes the signed owner; empty: the run has signed records

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines to be shown; empty: nothing has to be agreed to."""
        return self.consent.lines


def propose(hosts: HostPool, snapshot: Snapshot, run: RunView, targets: Sequence[str]) -> Proposal:
    """Return what a guard of the run needs consent to. No side effects.

    Where the run's host does not answer, what it has cannot be shown, and a later migration that needs consent to it is
    refused.

    Args:
        hosts: Connections to the fleet's hosts.
        snapshot: State of the fleet.
        run: The copy of the run's owner.
        targets: Targets of the guard.

    Raises:
        MidstreamError: Its config cannot be used on a target.
    """
    fleet = hosts.fleet
    head = snapshot.judgement(run.run_id).head
    adopted = ownership_consent(fleet, snapshot, run)
    owner = run.fence.owner if run.fence is not None and run.fence.owner in fleet.target_names else run.host
    lines = list(adopted)
    config: JsonObject | None = None
    text = ""
    try:
        source = hosts.get(run.host)
        config = host_files.training_config(source, run.run_id)
        store = source.call(tree.store_of)(root=source.root, run_id=run.run_id)
    except HostError:
        config, store = None, ""
    if config is not None and is_run_file(config):
        try:
            described = from_value(config, f"run.yaml of {run.host}")
        except records.RecordError as error:
            raise MidstreamError(str(error), "the run directory needs its run.yaml") from None
        text, config = travelling_text(described), None
        lines.append(f"{', '.join(targets)} would execute: {shown(' '.join(described.resume))}")
        if described.files_digest:
            lines.append(f"{', '.join(targets)} would get and execute files, digest {described.files_digest[:12]}")
    elif config is not None:
        for target in targets:
            if not job_restart.is_own_target(fleet, run, target):  # there it goes on as it is
                lines += check_config(config, run.host, target, (store.rstrip("/"),) if store else (), {})
    consent = GuardConsent(head.key if head is not None else "", config, text, tuple(lines))
    return Proposal(run, consent, owner if adopted and run.fence is not None else "")


def require(proposal: Proposal, agreed: bool) -> None:
    """Refuse a guard without the consent that it needs.

    Raises:
        MidstreamError: The user has to agree, and has not.
    """
    if proposal.lines and not agreed:
        raise MidstreamError("; ".join(proposal.lines), "--yes agrees to it", Exit.REFUSED)


def accept(hosts: HostPool, snapshot: Snapshot, proposal: Proposal) -> GuardConsent:
    """Record the consent, and sign the owner of a run that has no signed records.

    Raises:
        MidstreamError: The record cannot be written, here or on a host of the run that answers.
    """
    run, owner = proposal.run, proposal.owner
    if not owner or run.fence is None:
        return proposal.consent
    of_owner = hosts.fleet.hosts_of(owner)
    if run.host in of_owner:
        chain = signed_chain.first_chain(run.run_id, owner, run.fence, consent=ADOPTED)
    else:  # the run was handed over: the host that shows it had it before
        before = records.Fence(max(1, run.fence.epoch - 1), run.host)
        chain = signed_chain.first_chain(run.run_id, run.host, before, consent=ADOPTED)
        chain = signed_chain.next_chain(
            chain, epoch=run.fence.epoch, owner=owner, step=run.fence.sealed_step, consent=ADOPTED
        )
    memory.remember(chain)
    answering = {host.name for host in snapshot.hosts if host.link == LIVE}
    for copy in snapshot.copies(run.run_id):
        if copy.host in answering and (copy.host == run.host or copy.host in of_owner):
            host = hosts.get(copy.host)
            host.call(ownership.put_chain)(root=host.root, run_id=run.run_id, chain=chain.to_json())
    return replace(proposal.consent, key=chain.head.key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "none"
