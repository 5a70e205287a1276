"""Remember owners and newest checkpoints of the runs that this machine sees.

`midstream.ownership.memory` has them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.ownership import memory
from midstream.ownership.judgement import OWNER, Judgement
from midstream_core import records

if TYPE_CHECKING:
    from midstream.watch.snapshot import Snapshot

MOST = 256  # runs of which one look writes something: each write waits for the disk


def remember_owners(snapshot: Snapshot, only: Collection[str] | None = None) -> None:
    """Remember owner, newest accepted checkpoint and start of each run.

    The owner is proven. ``only``: these runs, instead of all. What was remembered before stays. A state directory that
    cannot be written does not end a look: a command that changes a run remembers by itself, and fails then.
    """
    written = 0
    for run_id in snapshot.order.ids if only is None else only:
        if written >= MOST:
            return
        copies = snapshot.copies(run_id)
        if not any(copy.ownership for copy in copies):
            continue
        judgement = snapshot.judgement(run_id)
        owners = [copy for copy in copies if judgement.standing(copy.host).kind == OWNER]
        if judgement.chain is None or not owners:
            continue
        seen = [
            (checkpoint.epoch, checkpoint.step, copy.host)
            for copy in owners
            for checkpoint in copy.usable
            if checkpoint.epoch <= judgement.chain.head.epoch
        ]
        epoch, step, host = max(seen) if seen else (0, None, "")
        before = judgement.remembered
        signed = judgement.chain.head.epoch
        shown = [copy.fence.order for copy in owners if copy.fence is not None and copy.fence.epoch == signed]
        started = max((order for order in shown if order[1] <= memory.MAX_START), default=(0, 0))
        remembered, started_before = (-1, -1), (0, 0)
        if before is not None and before.chain.continues(judgement.chain):
            remembered = before.epoch, -1 if before.step is None else before.step
            started_before = before.start_epoch, before.start
        if (epoch, -1 if step is None else step) <= remembered and started <= started_before:
            continue
        with suppress(MidstreamError):
            memory.remember(judgement.chain, step=step, epoch=epoch, host=host, started=started)
            written += 1


def remember_stop(judgement: Judgement, host: str, ended: records.Status) -> None:
    """Remember the checkpoint of a run that its owner has stopped.

    Another host's word, or an epoch that is not signed, would make the owner's own copy look like a restored one.
    """
    saved = records.parse_checkpoint_name(ended.checkpoint) if ended.checkpoint else None
    if judgement.chain is None or saved is None or judgement.standing(host).kind != OWNER:
        return
    if ended.epoch <= judgement.chain.head.epoch:
        started = ended.epoch, ended.start
        memory.remember(judgement.chain, step=saved[0], epoch=ended.epoch, host=host, started=started)
