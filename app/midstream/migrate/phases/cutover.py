"""Seal the source, copy the sealed state to the target and verify it there."""

from __future__ import annotations

import shlex
import time

from midstream.counts import agree, count
from midstream.errors import MidstreamError
from midstream.migrate import stages
from midstream.migrate.journal.facts import Copied, Facts, required
from midstream.migrate.journal.phase_names import CUTOVER
from midstream.migrate.phases.seal import seal
from midstream.migrate.source_config import agreed_config
from midstream.migrate.steps import prepare_standby, replica
from midstream.migrate.steps.data_copy import copy_further_caches
from midstream.migrate.steps.migration import Migration, replayed
from midstream.migrate.steps.ownership_records import hand_over, read_chain
from midstream.migrate.steps.pins import pin
from midstream.migrate.steps.source_return import owns_run, reopen_source, resume_unsealed, returned_fence, source_fence
from midstream.migrate.steps.stop_command import adopt_stop
from midstream.migrate.steps.streamed_copy import StreamedCopy, complete
from midstream.transfer.copy_history import copy_history
from midstream_host.runs import run_state, standby_state


class Cutover:
    """Seal the source and copy the sealed checkpoint to the target.

    After this phase no fence accepts another step of the source. In warm and live mode the standby is ready before the
    source is stopped.
    """

    name = CUTOVER

    def run(self, migration: Migration) -> None:
        with StreamedCopy() as streamed:
            self._run(migration, streamed)
        migration.clock.end(migration.phase)

    def undo(self, migration: Migration) -> None:
        """Resume the source, which was sealed under this epoch or commanded to stop."""
        plan = migration.plan
        if not owns_run(migration):
            migration.note(
                f"this migration has not touched {plan.run_id} on {migration.source.name}: nothing to undo there"
            )
            return
        fence = source_fence(migration)
        if fence.epoch < plan.epoch:
            resume_unsealed(migration, fence)
        else:
            reopen_source(migration, returned_fence(migration, fence))

    def _run(self, migration: Migration, streamed: StreamedCopy) -> None:
        if not migration.journal.facts.sealed:
            if migration.plan.has_standby and adopt_stop(migration) is None:
                prepare_standby.ensure(migration)  # after the stop command, waiting would be downtime
            at = None
            if replayed(migration):
                with migration.stage(stages.REPLAY):
                    at = replica.follow(migration)
            if migration.journal.facts.fallback_reason and migration.journal.facts.stop_sequence is None:
                prepare_standby.ensure(migration)  # the replica may have exited
            read_chain(migration)
            migration.clock.begin(stages.DOWNTIME, migration.phase)
            sealed = seal(migration, streamed, at)
            migration.journal.record(Facts(sealed=sealed))
            hand_over(migration, sealed)
            migration.note(f"the source is sealed at step {sealed.step}: no later step of it counts", step=sealed.step)
        sealed = required(migration.journal.facts.sealed, "sealed")
        hand_over(migration, sealed)  # this process may have been suspended: nothing is copied for a former owner
        name = sealed.checkpoint
        if migration.plan.has_standby:
            # A replica has computed the state; history and data are copied while the target trains.
            if not replayed(migration):
                copy_state(migration, name, streamed)
            return
        pin(migration, name)
        copy_run_history(migration)
        copy_state(migration, name, streamed)
        self._verify(migration, name, sealed.root_digest)
        copy_further_caches(migration, name)

    def _verify(self, migration: Migration, name: str, expected: str) -> None:
        """Read every object back on the target and compare the root digest there."""
        began = time.monotonic()
        where = migration.target_group.checkpoint_store.endpoint(name)
        hashes = "" if where.in_bucket else f"find {shlex.quote(where.directory)} -type f -exec sha256sum {{}} +"
        migration.log_command(migration.target, f"sha256 of every object in {where.directory}", does=hashes)
        report = migration.target_group.checkpoint_store.verify(name)
        if not report.ok:
            path, what = report.problems[0]
            raise MidstreamError(f"{where}/{path}: {what} after the copy", "the copy is not used; migrate again")
        if report.root_digest != expected:
            raise MidstreamError(
                f"{where} has another root digest ({report.root_digest}) than the source's last state",
                f"the copy is not used; midstream --verify {where} shows which objects differ",
            )
        migration.journal.record(Facts(verify_seconds=time.monotonic() - began))
        migration.note(f"{count(report.objects, 'object')} verified in {where}, root digest {expected[:12]}")


def copy_state(migration: Migration, name: str, streamed: StreamedCopy) -> None:
    """Copy the objects of the checkpoint that the target lacks."""
    began = time.monotonic()
    ahead = len(streamed.sent) if streamed.name == name else 0
    sent = complete(migration, name, streamed)
    migration.journal.record(Facts(state_copy=Copied(sent, time.monotonic() - began)))
    if ahead:
        migration.note(
            f"{count(ahead, 'object')} {agree(ahead, 'was', 'were')} sent before the source stopped; "
            f"{sent / 1e6:.1f} MB remained"
        )


def copy_run_history(migration: Migration, resolved: bool = False) -> None:
    """Copy config, lineage and the metrics of every attempt to the target.

    ``resolved``: an attempt trains on the target already; the config that it resolved there stays.
    """
    source, target, run_id = migration.source, migration.target, migration.plan.run_id
    if source is target:  # a run returns to a copy on the same host
        return
    here, there = migration.source_paths.dir, migration.target_paths.dir
    migration.log_command(
        target, f"copy {source.name}:{here} (config, lineage, metrics) to {there}", shows=f"ls -l {shlex.quote(there)}"
    )
    config: str | None = migration.journal.facts.target_config
    if resolved and config is None:
        config = target.call(run_state.read_text)(path=migration.target_paths.config)
        migration.journal.record(Facts(target_config=config))
    text = None if resolved else agreed_config(source, migration.plan)
    kept = config if resolved else None
    if migration.plan.trainer is not None and text is not None:
        kept, text = text, None  # the run file of the source may name a directory there: it is not copied
    copy_history(source, target, run_id, source_root=source.root, target_root=target.root, config=text)
    if kept is not None:
        target.call(standby_state.keep_config)(root=target.root, run_id=run_id, text=kept)
