"""Events about hosts, slices and what is left on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated

from midstream.json_events.json_event import HOST, RUN, TARGET, JsonEvent


class HostEvent(JsonEvent, event="host", of=("--status",)):
    """A host of the fleet file."""

    name: Annotated[str, HOST]
    kind: Annotated[str, "local or ssh"]
    link: Annotated[str, "connecting, live, stale or down"]
    last_seen: Annotated[float, "UTC seconds"]
    error: Annotated[str, "why it is not live, with a hint"]
    machine: Annotated[Mapping[str, object] | None, "hardware, load, software and accelerators; null: not reported"]


class SliceEvent(JsonEvent, event="slice", of=("--status",)):
    """A TPU slice of the projects and zones in the fleet file."""

    target: Annotated[str | None, "the target whose slice it is; null: none"]
    path: Annotated[str, "PROJECT/ZONE/NAME"]
    project: Annotated[str, "Google Cloud project"]
    zone: Annotated[str, "zone"]
    name: Annotated[str, "name of the node"]
    status: Annotated[str, "ready, creating, stopping, preempted, failed or unknown"]
    state: Annotated[str, "the same in the provider's words"]
    health: Annotated[str, "the provider's word"]
    accelerator_type: Annotated[str, "as in the fleet file"]
    topology: Annotated[str, "as in the fleet file"]
    runtime_version: Annotated[str, "as in the fleet file"]
    price_class: Annotated[str, "spot, reserved, flex-start or on demand"]
    queued: Annotated[str, "state of its queued request"]
    request: Annotated[str, "the provider's name of that request"]
    workers: Annotated[Sequence[Mapping[str, object]], "addresses of its workers"]
    labels: Annotated[Mapping[str, object], "labels of the node"]
    node: Annotated[bool, "false: requested, but not created yet"]
    identity: Annotated[str, "distinguishes it from an earlier slice of the same name"]
    created: Annotated[float, "UTC seconds"]
    why: Annotated[str, "the provider's explanation"]
    machines: Annotated[Sequence[str], "the provider's names of the workers"]
    stopped: Annotated[bool, "by its owner: it can be started again, with what is on its disks"]
    multislice: Annotated[bool, "one of several slices that were requested together"]


class AlertEvent(JsonEvent, event="alert", of=("--watch",)):
    """Something that happened to a run or a host; also a notification."""

    kind: Annotated[str, "finished, failed, lost, stalled, diverging, nan or idle"]
    run: Annotated[str | None, RUN] = None
    host: Annotated[str, HOST]
    message: Annotated[str, "one line"]


class ProblemEvent(JsonEvent, event="problem", of=("--status",)):
    """A project or zone that could not be listed."""

    message: Annotated[str, "what happened"]


class OccupantEvent(JsonEvent, event="occupant", of=("--delete",)):
    """A run that trains on the slice that would be deleted."""

    run: Annotated[str, RUN]
    host: Annotated[str, HOST]
    step: Annotated[int | None, "its newest step"]
    store: Annotated[str, "bucket of its checkpoints; empty: its disks"]


class SavedEvent(JsonEvent, event="saved", of=("--delete",)):
    """A run that was saved and stopped before its slice is deleted."""

    run: Annotated[str, RUN]
    step: Annotated[int, "its last step"]
    checkpoint: Annotated[str | None, "the checkpoint's name; null: none was saved"]


class ServingEvent(JsonEvent, event="serving", of=("--serve-metrics",)):
    """The metrics are served."""

    url: Annotated[str, "where"]


class RemovingEvent(JsonEvent, event="removing", of=("--clean",)):
    """With --yes: what is about to be removed; nothing else is."""

    host: Annotated[str, HOST]
    run: Annotated[str, RUN]
    path: Annotated[str, "path in the run's directory, or of the slice"]
    kind: Annotated[str, "partial, trash, temporary or slice"]
    bytes: Annotated[int, "size"]


class LeftoverEvent(JsonEvent, event="leftover", of=("--clean",), more="those of `slice`, for a slice"):
    """A remainder of a killed save, copy or creation."""

    host: Annotated[str | None, HOST] = None
    run: Annotated[str | None, RUN] = None
    path: Annotated[str, "path in the run's directory, or of the slice"]
    kind: Annotated[str, "partial, trash, temporary or slice"]
    bytes: Annotated[int | None, "size"] = None
    kept: Annotated[str, "why it is not removed; empty: it can be"]
    removed: Annotated[bool, "it was removed now"]
    changed: Annotated[float | None, "UTC seconds of its newest change, by the clock of its host or bucket"] = None
    values: Mapping[str, object] = field(default_factory=dict[str, object])


class CheckEvent(JsonEvent, event="check", of=("--check", "--doctor", "--migrate", "--verify")):
    """The result of one check."""

    name: Annotated[str, "what was checked"]
    state: Annotated[str, "pass, warn or fail"]
    detail: Annotated[str, "what was found"]
    hint: Annotated[str | None, "what to do"] = None
    host: Annotated[str | None, "host that it is about"] = None


class FleetEvent(JsonEvent, event="fleet", of=("--init",)):
    """The fleet file was written."""

    path: Annotated[str, "its path"]


class PriceEvent(JsonEvent, event="price", of=("--launch", "--migrate")):
    """A slice or pods would be created."""

    target: Annotated[str, TARGET]
    slice: Annotated[str, "PROJECT/ZONE/NAME"]
    class_: Annotated[str, "price class"]
    text: Annotated[str, "price per hour, in words"]


class CreatedEvent(JsonEvent, event="created", of=("--launch", "--migrate")):
    """A slice, or the pods of a target, were created."""

    target: Annotated[str, TARGET]
    slice: Annotated[str, "PROJECT/ZONE/NAME, or KIND/NAME of pods"]
    class_: Annotated[str, "price class; pods"]


class KeptEvent(JsonEvent, event="kept", of=("--launch", "--migrate")):
    """A slice or pods were created for a command that failed, and cost money."""

    target: Annotated[str, TARGET]
    slice: Annotated[str, "as in `created`"]


class DeletedEvent(JsonEvent, event="deleted", of=("--launch", "--migrate")):
    """A slice that was created for a refused command was deleted."""

    target: Annotated[str, TARGET]
    slice: Annotated[str, "PROJECT/ZONE/NAME"]
