"""Notifications of `on_event:` in the fleet file: their kinds and fields."""

from __future__ import annotations

from midstream.json_events.json_event import MIGRATION, RUN

# `$MIDSTREAM_EVENT` names the kind.
NOTIFICATIONS = {
    "finished": "a migration is certified and complete; or a guarded run has ended",
    "failed": "a migration was rolled back",
    "needs you": "a migration or a guarded run waits for you: the message says for what",
    "lost": "the host of a guarded run was lost or preempted",
    "restarted": "a guarded run was stopped before its job's time limit, and submitted again to the same target",
    "stalled": "a guarded run makes no steps",
    "diverging": "the loss of a guarded run rises",
    "nan": "the loss of a guarded run is not finite",
}
NOTIFICATION_FIELDS = {
    "event": "`migration` or `guard`",
    "kind": "one of the kinds",
    "run": RUN,
    "migration": MIGRATION,
    "from": "of a migration: host that the run left",
    "to": "of a migration: the target",
    "outcome": "of a migration: completed, rolled back, interrupted, rollback incomplete or moved on",
    "message": "one line",
}
