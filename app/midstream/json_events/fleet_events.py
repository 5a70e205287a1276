"""Events about hosts, slices and what is left on them."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, RUN, TARGET, JsonEvent

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
    "stopped": "by its owner: it can be started again, with what is on its disks",
    "multislice": "one of several slices that were requested together",
}

FLEET_EVENTS = (
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
    JsonEvent("slice", ("--status",), "a TPU slice of the projects and zones in the fleet file", _SLICE),
    JsonEvent(
        "problem", ("--status",), "a project or zone that could not be listed", {"message": "what happened"}
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
    JsonEvent(
        "removing", ("--clean",), "with --yes: what is about to be removed; nothing else is",
        {
            "host": HOST,
            "run": RUN,
            "path": "path in the run's directory, or of the slice",
            "kind": "partial, trash, temporary or slice",
            "bytes": "size",
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
            "changed": "UTC seconds of its newest change, by the clock of its host or bucket",
        },
        "those of `slice`, for a slice",
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
    JsonEvent("fleet", ("--init",), "the fleet file was written", {"path": "its path"}),
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
)  # fmt: skip
