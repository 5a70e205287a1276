"""States of a migration."""

from __future__ import annotations

RUNNING, INTERRUPTED, COMPLETED, ROLLED_BACK, ROLLBACK_INCOMPLETE, MOVED_ON = (
    "running",
    "interrupted",
    "completed",
    "rolled back",
    "rollback incomplete",
    "moved on",  # another migration took the run further before this one was rolled back
)
DAMAGED = "damaged"  # neither its plan nor its journal can be read, or a newer midstream wrote the journal
OPEN_STATES = frozenset({RUNNING, INTERRUPTED, ROLLBACK_INCOMPLETE, DAMAGED})
