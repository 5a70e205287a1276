"""Notifications of `on_event:` in the fleet file: their kinds and fields."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, MIGRATION, RUN

# `$MIDSTREAM_EVENT` names the kind.
NOTIFICATIONS = {
    "finished": "a migration is certified and complete; or a guarded or watched run has ended",
    "failed": "a migration was rolled back; or a watched run has failed",
    "needs you": "a migration or a guarded run waits for you: the message says for what",
    "lost": "the host of a guarded run was lost or preempted; or the process of a watched run has exited",
    "restarted": "a guarded run was stopped before its job's time limit, and submitted again to the same target",
    "stalled": "a guarded or watched run makes no steps",
    "diverging": "the loss of a guarded or watched run rises",
    "nan": "the loss of a guarded or watched run is not finite",
    "idle": "a watched host has had no work for half an hour",
}
NOTIFICATION_FIELDS = {
    "event": "`migration`, `guard` or `alert`",
    "kind": "one of the kinds",
    "run": f"{RUN}; an idle host has none",
    "host": f"of an alert: {HOST}",
    "migration": MIGRATION,
    "from": "of a migration: host that the run left",
    "to": "of a migration: the target",
    "outcome": "of a migration: completed, rolled back, interrupted, rollback incomplete or moved on",
    "message": "one line",
}
