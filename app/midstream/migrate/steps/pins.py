"""Pins: checkpoints on source and target that retention keeps for the migration."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import clock_skew
from midstream_host.runs import checkpoint_pins

PIN_SECONDS = 86400.0  # lifetime of a pin


def pin(migration: Migration, checkpoint: str) -> None:
    """Pin a checkpoint on the source, so that retention keeps it for the migration."""
    migration.source_group.checkpoint_store.pin(migration.plan.migration, checkpoint, pin_expires(migration))


@contextmanager
def pinned_on_target(migration: Migration, checkpoint: str) -> Generator[None, None, None]:
    """Pin a copied checkpoint on the target until it is compared there.

    The target's retention would delete it, because it is older than the target's own checkpoints.
    """
    plan, target = migration.plan, migration.target
    expires = time.time() + clock_skew(migration, plan.target_host) + PIN_SECONDS
    target.call(checkpoint_pins.pin)(target.root, plan.run_id, plan.migration, checkpoint, expires)
    yield  # after an error the pin stays for the continuation, until it expires
    target.call(checkpoint_pins.unpin)(root=target.root, run_id=plan.run_id, migration=plan.migration)


def pin_expires(migration: Migration) -> float:
    """Return when a new pin expires, in UTC seconds by the later clock of both ends.

    In a bucket, either one's retention reads it.
    """
    skews = [clock_skew(migration, host) for host in (migration.plan.source, migration.plan.target_host)]
    return time.time() + max(skews) + PIN_SECONDS
