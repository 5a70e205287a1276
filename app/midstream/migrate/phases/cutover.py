"""Seal the source, and bring the sealed state to the target, verified there."""

from __future__ import annotations

import time

from midstream.errors import MidstreamError
from midstream.migrate.execution.migration import Migration, pin, replayed
from midstream.migrate.model import CUTOVER
from midstream.migrate.phases import prepare_standby, replica
from midstream.migrate.phases.data_copy import copy_all
from midstream.migrate.phases.seal import seal
from midstream.migrate.phases.streamed_copy import Streamed, complete
from midstream.migrate.planning.source_config import agreed_config
from midstream.transfer import copy_history


class Cutover:
    """After this phase the target holds the sealed checkpoint and the run's history, and no fence accepts another
    step of the source. Where an attempt stands by, it is made sure of before the source is touched."""

    name = CUTOVER

    def run(self, move: Migration) -> None:
        with Streamed() as streamed:
            self._run(move, streamed)

    def _run(self, move: Migration, streamed: Streamed) -> None:
        if not move.journal.known("sealed"):
            if move.plan.stands_by and move.journal.known("seal_serial") is None:
                prepare_standby.ensure(move)  # once the source was told to stop, nothing is waited for any more
            at = replica.follow(move) if replayed(move) else None
            if move.journal.known("fallen_back") and move.journal.known("seal_serial") is None:
                prepare_standby.ensure(move)  # the shadow may have ended
            sealed = seal(move, streamed, at)
            move.journal.fact(sealed=sealed)
            move.note(f"the source is sealed at step {sealed['step']}", step=sealed["step"])
        sealed = move.journal.known("sealed")
        name = sealed["checkpoint"]
        if move.plan.stands_by:
            # What the run needs to go on: its state, where the target has not computed that. The rest comes later.
            if not replayed(move):
                bring_state(move, name, streamed)
            return
        pin(move, name)
        bring_history(move)
        bring_state(move, name, streamed)
        self._verify(move, name, sealed["root_digest"])
        needed = move.target_group.checkpoint_store.data_digests(name)
        copy_all(move, [digest for digest in needed if digest not in move.plan.data_digests])

    def _verify(self, move: Migration, name: str, expected: str) -> None:
        """Read every object back from the target's disk. The root digest is computed there, from those bytes."""
        began = time.monotonic()
        where = move.target_group.checkpoint_store.endpoint(name)
        move.command(move.target, f"sha256 of every object in {where.directory}")
        report = move.target_group.checkpoint_store.verify(name)
        if not report.ok:
            path, what = report.problems[0]
            raise MidstreamError(f"{where}/{path}: {what} after the copy", "the copy is not used; try again")
        if report.root_digest != expected:
            raise MidstreamError(
                f"{where} has another root digest ({report.root_digest}) than was sealed",
                "the copy is not used; midstream --verify shows which objects differ",
            )
        move.journal.fact(verify_seconds=time.monotonic() - began)
        move.note(f"{report.objects} objects verified in {where}, root digest {expected[:12]}")


def bring_state(move: Migration, name: str, streamed: Streamed) -> None:
    """What of the checkpoint is not on the target yet."""
    began = time.monotonic()
    ahead = len(streamed.sent) if streamed.name == name else 0
    sent = complete(move, name, streamed)
    move.journal.fact(copy_seconds=time.monotonic() - began, copied_bytes=sent)
    if ahead:
        move.note(f"{ahead} objects went ahead of the seal; {sent / 1e6:.1f} MB were left")


def bring_history(move: Migration, resolved: bool = False) -> None:
    """Config, lineage, and the metrics of every attempt. ``resolved``: an attempt trains on the target already, and has
    written the config as it is resolved there, which stays."""
    source, target, run_id = move.source, move.target, move.plan.run_id
    if source is target:  # it comes back to a copy that was left behind
        return
    move.command(source, f"copy {move.source_paths.dir} (config, lineage, metrics) to {target.name}")
    config: str | None = move.journal.known("target_config")
    if resolved and config is None:
        config = target.call("runs.run_state.read_text", path=move.target_paths.config)
        move.journal.fact(target_config=config)
    text = None if resolved else agreed_config(source, move.plan)
    copy_history(source, target, run_id, source_root=source.root, target_root=target.root, config=text)
    if resolved:
        target.call("runs.standby_state.keep_config", root=target.root, run_id=run_id, text=config)
