"""Names of the phases in their order, and the states of a phase."""

from __future__ import annotations

PLAN, PREFLIGHT, PREPARE, CUTOVER, RELAUNCH, CERTIFY, FINISH = (
    "plan",
    "preflight",
    "prepare",
    "cutover",
    "relaunch",
    "certify",
    "finish",
)
ROLLBACK = "rollback"  # replaces the remaining phases after a failure

STARTED, PROGRESS, DONE, FAILED = "started", "progress", "done", "failed"
