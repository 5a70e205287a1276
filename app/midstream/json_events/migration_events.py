"""Events about migrations, imports and guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from midstream.json_events.json_event import HOST, MIGRATION, RUN, TARGET, JsonEvent


class MigrationEvent(JsonEvent, event="migration", of=("--status",)):
    """A migration of this fleet."""

    migration: Annotated[str, MIGRATION]
    run: Annotated[str, RUN]
    source: Annotated[str, "host that the run leaves"]
    target: Annotated[str, TARGET]
    state: Annotated[str, "running, interrupted, completed, rolled back, rollback incomplete, moved on or damaged"]
    phase: Annotated[str, "its last phase"]
    created: Annotated[float, "UTC seconds"]
    predicted_seconds: Annotated[Mapping[str, object], "phase -> predicted seconds of downtime"]
    downtime: Annotated[float | None, "measured seconds"]
    certified: Annotated[bool | None, "the certificate is valid and in force; null: there is none yet"]
    certificate: Annotated[str | None, "`certified`, `failed`, or `void` after a rollback; null: there is none yet"]
    error: Annotated[str, "why it failed"]
    damage: Annotated[Sequence[str], "files of the migration that cannot be read"]


class ImportEvent(JsonEvent, event="import", of=("--migrate",)):
    """With --migrate PATH --dry-run: what would be imported."""

    run: Annotated[str, "id that the run would get"]
    source: Annotated[str, "host that has the checkpoint"]
    path: Annotated[str, "path of the checkpoint"]
    target: Annotated[str, TARGET]
    flags: Annotated[Sequence[str], "flags of the import"]


class PlanEvent(JsonEvent, event="plan", of=("--migrate",)):
    """The plan, before the checks."""

    format: Annotated[int, "format of the plan"]
    identity: Annotated[Mapping[str, object], "migration, run, mode, checkpoint, ownership before and after"]
    shape: Annotated[Mapping[str, object], "devices, batch, accumulation, engine flags"]
    route: Annotated[Mapping[str, object], "both ends: hosts, stores, data"]
    estimate: Annotated[
        Mapping[str, object] | None, "bytes, downtime by phase, duration by stage (null: unknown), cost, steps given up"
    ]
    policy: Annotated[Mapping[str, object], "steps to compare, healthy steps, what needs --yes, warnings"]
    trainer: Annotated[
        Mapping[str, object] | None,
        "of another trainer's run: its run file, flags, what is not stored; null: midstream's engine",
    ]


class PhaseEvent(JsonEvent, event="phase", of=("--migrate", "--continue", "--rollback")):
    """A phase of a migration started, went on or ended."""

    time: Annotated[float | None, "UTC seconds"] = None
    phase: Annotated[str | None, "prepare, cutover, relaunch, certify, finish or rollback"] = None
    state: Annotated[str | None, "started, progress, done or failed"] = None
    message: Annotated[str | None, "why it failed"] = None
    what: Annotated[str | None, "progress: what is copied"] = None
    bytes_done: Annotated[int | None, "progress: bytes copied"] = None
    bytes_total: Annotated[int | None, "progress: bytes to copy"] = None
    objects_done: Annotated[int | None, "progress: objects copied"] = None
    objects_total: Annotated[int | None, "progress: objects to copy"] = None
    object: Annotated[str | None, "progress: the object that is copied now"] = None
    bytes_per_second: Annotated[float | None, "progress: rate"] = None
    eta_seconds: Annotated[float | None, "progress: seconds that remain; null: not known"] = None
    exit_code: Annotated[int | None, "of a rollback: the exit code that it will end with"] = None


class StageEvent(JsonEvent, event="stage", of=("--migrate", "--continue", "--rollback")):
    """A stage of a migration started, goes on or ended."""

    time: Annotated[float | None, "UTC seconds"] = None
    phase: Annotated[str | None, "phase of the migration"] = None
    state: Annotated[str | None, "started, progress (every 30 s) or done"] = None
    stage: Annotated[
        str | None, "install, data, checkpoint, start, compile, rehearse, replay, downtime, certify or healthy steps"
    ] = None
    message: Annotated[str | None, "one line"] = None
    estimated_seconds: Annotated[float | None, "seconds that the stage is expected to take; null: not known"] = None
    elapsed_seconds: Annotated[float | None, "seconds since it started"] = None
    remaining_seconds: Annotated[
        float | None, "seconds until the migration ends, without stages of unknown duration"
    ] = None
    unknown: Annotated[Sequence[str] | None, "stages of unknown duration that are left"] = None
    seconds: Annotated[float | None, "done: seconds that it took"] = None


class CommandEvent(JsonEvent, event="command", of=("--migrate", "--continue", "--rollback")):
    """An action of a migration on a host."""

    time: Annotated[float | None, "UTC seconds"] = None
    phase: Annotated[str | None, "phase of the migration"] = None
    host: Annotated[str | None, HOST] = None
    message: Annotated[str | None, "what was done"] = None
    does: Annotated[str | None, "a line of shell that does the same"] = None
    shows: Annotated[str | None, "a line of shell that shows the result, where only midstream can do it"] = None


class NoteEvent(JsonEvent, event="note", of=("--migrate", "--continue", "--rollback")):
    """One line of a migration for the user."""

    time: Annotated[float | None, "UTC seconds"] = None
    phase: Annotated[str | None, "phase of the migration"] = None
    state: Annotated[str | None, "resumed: another process continues the migration"] = None
    message: Annotated[str | None, "the line"] = None
    step: Annotated[int | None, "step of the seal"] = None
    what: Annotated[str | None, "what the line is about"] = None


class GuardEvent(JsonEvent, event="guard", of=("--guard",)):
    """An observation or action of a guard; also a notification."""

    kind: Annotated[
        str | None, "migrating, restarting, waiting, creating, deleted, kept, lead, claimed, or a kind of notification"
    ] = None
    run: Annotated[str | None, RUN] = None
    to: Annotated[str | None, "migrating, restarting, and of pods creating, deleted, kept: the target"] = None
    migration: Annotated[str | None, MIGRATION] = None
    message: Annotated[
        str | None, "one line; of a lead: how long before its job's time limit a run is handed on, and why"
    ] = None
