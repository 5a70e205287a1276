"""Events about migrations, imports and guards."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent

MIGRATION_EVENTS = (
    JsonEvent(
        "migration", ("--status",), "a migration of this fleet",
        {
            "migration": MIGRATION,
            "run": RUN,
            "source": "host that the run leaves",
            "target": TARGET,
            "state": "running, interrupted, completed, rolled back, rollback incomplete, moved on or damaged",
            "phase": "its last phase",
            "created": "UTC seconds",
            "predicted_seconds": "phase -> predicted seconds of downtime",
            "downtime": "measured seconds",
            "certified": "the certificate is valid and in force; null: there is none yet",
            "certificate": "`certified`, `failed`, or `void` after a rollback; null: there is none yet",
            "error": "why it failed",
            "damage": "files of the migration that cannot be read",
        },
    ),
    JsonEvent(
        "import", ("--migrate",), "with --migrate PATH --dry-run: what would be imported",
        {
            "run": "id that the run would get",
            "source": "host that has the checkpoint",
            "path": "path of the checkpoint",
            "target": TARGET,
            "flags": "flags of the import",
        },
    ),
    JsonEvent(
        "plan", ("--migrate",), "the plan, before the checks",
        {
            "format": "format of the plan",
            "identity": "migration, run, mode, checkpoint, epochs",
            "shape": "devices, batch, accumulation, engine flags",
            "route": "both ends: hosts, stores, data",
            "estimate": "bytes, downtime by phase, duration by stage (null: unknown), cost, steps given up",
            "policy": "steps to compare, healthy steps, what needs --yes, warnings",
            "trainer": "of another trainer's run: its run file, flags, what is not stored; null: midstream's engine",
        },
    ),
    JsonEvent(
        "phase", ("--migrate", "--continue", "--rollback"), "a phase of a migration started, went on or ended",
        {
            "time": "UTC seconds",
            "phase": "prepare, cutover, relaunch, certify, finish or rollback",
            "state": "started, progress, done or failed",
            "message": "why it failed",
            "what": "progress: what is copied",
            "bytes_done": "progress: bytes copied",
            "bytes_total": "progress: bytes to copy",
            "objects_done": "progress: objects copied",
            "objects_total": "progress: objects to copy",
            "object": "progress: the object that is copied now",
            "bytes_per_second": "progress: rate",
            "eta_seconds": "progress: seconds that remain; null: not known",
            "exit_code": "of a rollback: the exit code that it will end with",
        },
    ),
    JsonEvent(
        "stage", ("--migrate", "--continue", "--rollback"), "a stage of a migration started, goes on or ended",
        {
            "time": "UTC seconds",
            "phase": "phase of the migration",
            "state": "started, progress (every 30 s) or done",
            "stage": "install, data, checkpoint, start, compile, rehearse, replay, downtime, certify or healthy steps",
            "message": "one line",
            "estimated_seconds": "seconds that the stage is expected to take; null: not known",
            "elapsed_seconds": "seconds since it started",
            "remaining_seconds": "seconds until the migration ends, without stages of unknown duration",
            "unknown": "stages of unknown duration that are left",
            "seconds": "done: seconds that it took",
        },
    ),
    JsonEvent(
        "command", ("--migrate", "--continue", "--rollback"), "what a migration did on a host",
        {
            "time": "UTC seconds",
            "phase": "phase of the migration",
            "host": HOST,
            "message": "what was done",
            "does": "a line of shell that does the same",
            "shows": "a line of shell that shows the result, where only midstream can do it",
        },
    ),
    JsonEvent(
        "note", ("--migrate", "--continue", "--rollback"), "one line of a migration for the user",
        {
            "time": "UTC seconds",
            "phase": "phase of the migration",
            "state": "resumed: another process continues the migration",
            "message": "the line",
            "step": "step of the seal",
            "what": "what the line is about",
        },
    ),
    JsonEvent(
        "guard", ("--guard",), "what a guard observed or did; also a notification",
        {
            "kind": "migrating, restarting, waiting, creating, deleted, kept, lead, claimed, or a kind of notification",
            "run": RUN,
            "to": "migrating, restarting, and of pods creating, deleted, kept: the target",
            "migration": MIGRATION,
            "message": "one line; of a lead: how long before its job's time limit a run is handed on, and why",
        },
    ),
)  # fmt: skip
