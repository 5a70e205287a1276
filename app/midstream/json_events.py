"""JSON lines of --json and notifications of `on_event:`: fields and meanings.

docs/reference/json-lines.md is made from these tables. `problem_of` checks an event against them; the tests check each
line that a command prints, and the source of each event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class JsonEvent(NamedTuple):
    """One kind of JSON line.

    Attributes:
        name: Value of its field ``event``.
        of: Modes that print it.
        text: What it is about, and when it is printed.
        fields: Field -> meaning, without ``event``. A field that does not apply may be missing.
        more: What other fields are, where their names are not fixed.
    """

    name: str
    of: tuple[str, ...]
    text: str
    fields: Mapping[str, str]
    more: str = ""


RUN, HOST, TARGET = "the run's id", "the host's name in the fleet file", "the target's name in the fleet file"
MIGRATION = "the migration's id"
_SLICE = {
    "target": "the target whose slice it is; null: none",
    "path": "PROJECT/ZONE/NAME",
    "project": "Google Cloud project",
    "zone": "zone",
    "name": "name of the node",
    "status": "ready, creating, stopping, preempted, failed or unknown",
    "state": "the same in the provider's words",
    "health": "the provider's word",
    "accelerator_type": "as in the fleet file",
    "topology": "as in the fleet file",
    "runtime_version": "as in the fleet file",
    "price_class": "spot, reserved, flex-start or on demand",
    "queued": "state of its queued request",
    "request": "the provider's name of that request",
    "workers": "addresses of its workers",
    "labels": "labels of the node",
    "node": "false: requested, but not created yet",
    "identity": "distinguishes it from an earlier slice of the same name",
    "created": "UTC seconds",
    "why": "the provider's explanation",
    "machines": "the provider's names of the workers",
    "multislice": "one of several slices that were requested together",
}
_COSTS = {
    "on_hours": "hours that it was on",
    "training_hours": "hours of training",
    "preparing_hours": "hours in which an engine process ran and did not train",
    "idle_hours": "hours without an engine process",
    "cost": "price times hours; null: no price is known",
    "idle_cost": "the part of it that was idle",
}

EVENTS = (
    JsonEvent(
        "host", ("--status",), "a host of the fleet file",
        {
            "name": HOST,
            "kind": "local or ssh",
            "link": "connecting, live, stale or down",
            "last_seen": "UTC seconds",
            "error": "why it is not live, with a hint",
            "machine": "hardware, load, software and accelerators; null: not reported",
        },
    ),
    JsonEvent(
        "run", ("--status",), "one copy of a run",
        {
            "run": RUN,
            "host": "where this copy is",
            "state": "state of its newest attempt",
            "running": "its process runs: there is positive evidence",
            "step": "step of the newest attempt",
            "loss": "the last training loss",
            "epoch": "the fence's epoch; the copy with the highest one counts",
            "attempt": "number of the newest attempt",
            "fence": "the fence",
            "problem": "which of its files cannot be read",
            "reason": "why it failed, in one line",
            "exit": "how its process ended, as its supervisor recorded it",
            "damaged": "file -> error of records that cannot be read",
            "store": "bucket of its checkpoints; empty: on the host",
            "lineage": "its attempts: target, devices, steps",
            "status": "the engine's status",
            "checkpoints": "its checkpoints, each with the fields of the event `checkpoint`",
        },
    ),
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
        "occupant", ("--delete",), "a run that trains on the slice that would be deleted",
        {"run": RUN, "host": HOST, "step": "its newest step", "store": "bucket of its checkpoints; empty: its disks"},
    ),
    JsonEvent(
        "saved", ("--delete",), "a run that was saved and stopped before its slice is deleted",
        {"run": RUN, "step": "its last step", "checkpoint": "the checkpoint's name"},
    ),
    JsonEvent("serving", ("--serve-metrics",), "the metrics are served", {"url": "where"}),
    JsonEvent("slice", ("--status",), "a TPU slice of the projects and zones in the fleet file", _SLICE),
    JsonEvent(
        "problem", ("--status",), "a project or zone that could not be listed", {"message": "what happened"}
    ),
    JsonEvent(
        "baseline", ("--compare",), "the run as it trains now, measured, to compare the candidates with",
        {
            "target": TARGET,
            "host": HOST,
            "devices": "as jax counts them",
            "device_kind": "jax's name of a device",
            "price_per_hour": "price of all of it; null: not known",
            "step_seconds": "`value`, `low` and `high`: the median of the last 200 steps, without the outer tenths",
            "tokens_per_second": "of all devices; null: not measured",
            "steps_left": "steps to the end of the run; null: not known",
            "seconds_to_end": "`value`, `low` and `high`; null: not known",
            "cost_to_end": "`value`, `low` and `high`; null: no price is known",
        },
    ),
    JsonEvent(
        "candidate", ("--compare", "--check", "--launch", "--migrate"),
        "an estimate for accelerators that are not here, the best first; of a slice that does not exist yet",
        {
            "candidate": "the name in --with",
            "accelerators": "the same, or what the target has",
            "topology": "the compiler's name of it",
            "target": "the target's name in the fleet file; null: accelerators alone",
            "price_per_hour": "price of all of it; null: not known",
            "error": "why there is no estimate; null: there is one",
            "fits": "the step fits the devices' memory, with at least one example at a time",
            "devices": "as jax counts them",
            "device_kind": "jax's name of a device",
            "device_memory": "bytes of a device; null: not known",
            "parameters": "of the model, with padding",
            "batch": "examples of a step",
            "configured": "examples at a time on a device, by the configuration",
            "largest": "the most examples at a time that fit; null: none",
            "per_device_parallelism": "examples at a time of the estimate; null: none fit",
            "accumulation": "micro-batches of a step",
            "peak_memory": "bytes of a device at most, by the compiler; null: nothing fits",
            "needed": "bytes that the last refused program needs; null: none was refused",
            "compile_seconds": "seconds of all compilations on the host that compiled",
            "mfu": "model FLOPs utilisation of the estimate, with all keys of attention",
            "step_seconds": "`value`, `low` and `high` of a step",
            "parts": "seconds of the uncorrected estimate: `compute`, attention `kernels`, `exposed` collectives",
            "tokens_per_second": "of all devices",
            "steps_left": "steps to the end of the run",
            "seconds_to_end": "`value`, `low` and `high`, without the move",
            "cost_to_end": "`value`, `low` and `high`, with the move; null: no price is known",
            "calibration": "measured over estimated steps on such devices: `pairs`, `ratio`, `low`, `high`; null: none",
            "move_seconds": "of a run: until it trains there, without installation and copy of its data",
            "downtime": "of a run: predicted seconds in which nothing trains",
            "move_cost": "of a run: what the move costs; null: a price is not known",
            "pays_after_steps": "of a run: steps after which the move has paid for itself; null: never, or not known",
            "pays_after_hours": "of a run: the same in hours of training there",
        },
    ),
    JsonEvent(
        "host_cost", ("--cost",), "hours and money of a host",
        {
            "host": HOST,
            "price_per_hour": "price in the fleet file; null: it has none",
            "accelerators": "their number; null: not known",
            "known_since": "UTC seconds: the time before counts only where a process ran",
            **_COSTS,
            "idle_accelerator_hours": "idle hours times accelerators",
        },
    ),
    JsonEvent(
        "run_cost", ("--cost",), "hours and money of a run",
        {
            "run": RUN,
            "hosts": "hosts that it ran on",
            "process_hours": "hours of its processes on all hosts",
            "training_hours": _COSTS["training_hours"],
            "cost": _COSTS["cost"],
        },
    ),
    JsonEvent(
        "migration_cost", ("--cost",), "time and money of a migration",
        {
            "migration": MIGRATION,
            "run": RUN,
            "source": "host that the run left",
            "target": TARGET,
            "state": "the migration's state",
            "preparation_seconds": "from the plan to the source's last step",
            "downtime_seconds": "seconds without a step",
            "cost": "of the target during the preparation, and of both sides during the downtime",
        },
    ),
    JsonEvent("not_known", ("--cost",), "a cost that is not known", {"message": "which one, and why"}),
    JsonEvent(
        "total_cost", ("--cost",), "the total of all hosts",
        {
            "since": "begin of the period, UTC seconds",
            "until": "its end",
            **_COSTS,
            "without_price": "hosts without a price in the fleet file",
        },
    ),
    JsonEvent(
        "plot", ("--metrics",), "the chart that `--plot` wrote",
        {"path": "the file", "metric": "its name", "points": "how many the runs have"},
    ),
    JsonEvent(
        "system", ("--metrics",), "`--system`: what a host of a run reported in five seconds",
        {
            "run": RUN,
            "host": HOST,
            "time": "UTC seconds of this machine, in the middle of them",
            "global_step": "the run's last step then; null: not known",
        },
        "each metric that the host reports: `utilization` (0 to 1), `accelerator_memory` (bytes), `power` (W) and "
        "`temperature` (C) as lists by accelerator, `cpu` (0 to 1), `memory` (bytes), and in bytes a second "
        "`network_received`, `network_sent`, `rdma_received`, `rdma_sent`, `disk_read`, `disk_written`",
    ),
    JsonEvent(
        "metrics", ("--metrics",), "one step of a run",
        {"run": RUN, "global_step": "the step", "attempt": "attempt that computed it"},
        "all that was measured at the step: `train/loss`, `eval/loss`, ...",
    ),
    JsonEvent(
        "log", ("--log",), "one line of a log",
        {
            "run": RUN,
            "attempt": "number of the attempt",
            "line": "the line",
            "number": "--search: number of the line in the log, from 1 on",
        },
    ),
    JsonEvent(
        "config", ("--config",), "the configuration of one attempt",
        {"run": RUN, "attempt": "number of the attempt", "config": "the configuration with all defaults"},
    ),
    JsonEvent(
        "change", ("--config",), "a difference between two attempts",
        {
            "run": RUN,
            "name": "dotted name of the field",
            "kind": "added, removed or changed",
            "before": "its value in the first attempt",
            "after": "its value in the second attempt",
        },
    ),
    JsonEvent(
        "checkpoint", ("--checkpoints",), "a checkpoint of a run",
        {
            "run": RUN,
            "host": "host that has it",
            "store": "bucket that has it; empty: the host",
            "name": "its directory",
            "step": "updates that the state has had",
            "attempt": "attempt that saved it",
            "complete": "it has a manifest, and everything that this lists was written",
            "accepted": "the fence accepts it",
            "size": "bytes",
            "created": "UTC seconds",
            "root_digest": "digest of the complete state",
            "epoch": "epoch that it was saved in",
            "pinned": "retention does not delete it",
            "damaged": "why its manifest cannot be read",
        },
    ),
    JsonEvent(
        "array", ("--checkpoints", "--verify"), "an array of a checkpoint; with --verify only under --deep",
        {
            "name": "its path in the state",
            "axes": "names of its axes",
            "shape": "sizes of its axes",
            "dtype": "type of its elements",
            "bytes": "bytes of its elements",
            "grid": "number of chunks along each axis",
            "norm": "with --deep: Euclidean norm",
            "not_finite": "with --deep: number of NaN and infinite elements",
        },
    ),
    JsonEvent(
        "leftover", ("--clean",), "what a killed save, copy or creation left",
        {
            "host": HOST,
            "run": RUN,
            "path": "path in the run's directory, or of the slice",
            "kind": "partial, trash, temporary or slice",
            "bytes": "size",
            "kept": "why it is not removed; empty: it can be",
            "removed": "it was removed now",
        },
        "those of `slice`, for a slice",
    ),
    JsonEvent(
        "repair", ("--repair",), "a damaged record and its replacement",
        {
            "host": HOST,
            "run_id": RUN,
            "file": "path in the run's directory",
            "wrong": "what is wrong with it",
            "value": "its new content; null: the file is set aside",
            "evidence": "what determines the value",
            "missing": "what would determine it; empty: it is determined",
            "written": "it was written now",
            "kept": "new name of the damaged file",
        },
    ),
    JsonEvent(
        "check", ("--check", "--doctor", "--migrate", "--verify"), "the result of one check",
        {
            "name": "what was checked",
            "state": "pass, warn or fail",
            "detail": "what was found",
            "hint": "what to do",
            "host": "host that it is about",
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
            "kind": "migrating, restarting, lead, or one of the kinds of notifications",
            "run": RUN,
            "to": "migrating, restarting: the target",
            "migration": MIGRATION,
            "message": "one line; of a lead: how long before its job's time limit a run is handed on, and why",
        },
    ),
    JsonEvent("fleet", ("--init",), "the fleet file was written", {"path": "its path"}),
    JsonEvent(
        "launched", ("--demo",), "the demo's run has started",
        {"run": RUN, "target": TARGET, "attempt": "number of the attempt"},
    ),
    JsonEvent(
        "price", ("--launch", "--migrate"), "a slice would be created",
        {"target": TARGET, "slice": "PROJECT/ZONE/NAME", "class": "price class", "text": "price per hour, in words"},
    ),
    JsonEvent(
        "created", ("--launch", "--migrate"), "a slice, or the pods of a target, were created",
        {"target": TARGET, "slice": "PROJECT/ZONE/NAME, or KIND/NAME of pods", "class": "price class; pods"},
    ),
    JsonEvent(
        "kept", ("--launch", "--migrate"), "a slice or pods were created for a command that failed, and cost money",
        {"target": TARGET, "slice": "as in `created`"},
    ),
    JsonEvent(
        "deleted", ("--launch", "--migrate"), "a slice that was created for a refused command was deleted",
        {"target": TARGET, "slice": "PROJECT/ZONE/NAME"},
    ),
    JsonEvent(
        "result",
        (
            "--check", "--doctor", "--launch", "--adopt", "--init-run", "--stop", "--migrate", "--continue",
            "--rollback", "--guard", "--repair",
            "--clean", "--delete", "--checkpoints", "--config", "--verify", "--diff", "--log", "--compare",
        ),
        "the end of a command that acts or judges, and of each one that fails: the last line",
        {
            "ok": "the command did what was requested",
            "exit_code": "exit code of the command",
            "error": "what happened, if it failed",
            "hint": "what to do",
            "message": "of a migration: what happened",
            "time": "of a migration: UTC seconds",
            "compared": "--compare: the run or the configuration",
            "best": "--compare: the first candidate that fits; null: none",
            "run": RUN,
            "host": HOST,
            "target": TARGET,
            "attempt": "--launch, --log --follow: number of the attempt",
            "state": "--launch: the state of its first process, training if it did not end at once; "
            "--log --follow: as it ended",
            "step": "--launch: its step; --stop, --log --follow: the last step",
            "checkpoint": "--stop, --verify, --checkpoints: the checkpoint",
            "dry_run": "--migrate --dry-run: nothing was changed",
            "migration": MIGRATION,
            "outcome": "of a migration: completed, rolled back, interrupted, rollback incomplete or moved on",
            "file": "--init-run: the run file that was written",
            "certificate": "of a migration: the certificate",
            "downtime": "of a migration: the downtime report",
            "duration": "of a migration: estimated and measured seconds by stage",
            "not_checked": "--verify MIGRATION: number of claims that can no longer be checked",
            "objects": "--verify: number of objects",
            "bytes": "--verify: bytes",
            "root_digest": "--verify, --checkpoints: the root digest",
            "deep": "--verify: every array was decoded",
            "problems": "--verify: pairs of path and what is wrong",
            "root_digests": "--diff: of both",
            "checkpoints": "--diff: names of both",
            "differences": "--diff: arrays that differ",
            "attempts": "--config: both attempts",
            "changes": "--config: number of differences",
            "damaged": "--repair: number of damaged records",
            "written": "--repair: number of records written",
            "matches": "--log --search: number of lines with a match",
            "lines": "--log --search: number of lines of the log",
            "leftovers": "--clean: their number",
            "removable": "--clean: number that can be removed and remains",
            "deleted": "--delete: the slice",
            "pass": "--check, --doctor: checks that passed",
            "warn": "checks with a warning",
            "fail": "checks that failed",
        },
    ),
)  # fmt: skip
BY_NAME = {event.name: event for event in EVENTS}

# Kinds of notifications, which `on_event:` of the fleet file gets, and `$MIDSTREAM_EVENT` names.
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


def problem_of(value: Mapping[str, Any]) -> str:
    """Return what a JSON line has that is not in `EVENTS`; empty if nothing."""
    event = BY_NAME.get(str(value.get("event")))
    if event is None:
        return f"event {value.get('event')!r} is not in midstream.json_events"
    unknown = [name for name in value if name != "event" and name not in event.fields]
    return (
        f"event {event.name}: {', '.join(unknown)}: not in midstream.json_events" if unknown and not event.more else ""
    )
