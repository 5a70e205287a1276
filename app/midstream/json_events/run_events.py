"""Events about runs, their checkpoints, metrics and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated

from midstream.json_events.json_event import HOST, RUN, TARGET, JsonEvent


class RunEvent(JsonEvent, event="run", of=("--status",)):
    """One copy of a run."""

    run: Annotated[str, RUN]
    host: Annotated[str, "where this copy is"]
    state: Annotated[str, "state of its newest attempt"]
    running: Annotated[bool, "its process runs: there is positive evidence"]
    step: Annotated[int | None, "step of the newest attempt"]
    loss: Annotated[float | None, "the last training loss"]
    epoch: Annotated[int, "number of the ownership by this host's fence: `ownership` has what is proven"]
    attempt: Annotated[int, "number of the newest attempt"]
    fence: Annotated[Mapping[str, object] | None, "the fence"]
    problem: Annotated[str, "which of its files cannot be read"]
    reason: Annotated[str, "why it failed, or what its job waits for, in one line"]
    exit: Annotated[Mapping[str, object] | None, "how its process ended, as its supervisor recorded it"]
    damaged: Annotated[Mapping[str, object], "file -> error of records that cannot be read"]
    store: Annotated[str, "bucket of its checkpoints; empty: on the host"]
    lineage: Annotated[Sequence[Mapping[str, object]], "its attempts: target, devices, steps"]
    status: Annotated[Mapping[str, object] | None, "the engine's status"]
    checkpoints: Annotated[
        Sequence[Mapping[str, object]], "its checkpoints, each with the fields of the event `checkpoint`"
    ]


class OwnershipEvent(JsonEvent, event="ownership", of=("--status",)):
    """The proven owner of a run, once all hosts have answered or are unreachable."""

    run: Annotated[str, RUN]
    owner: Annotated[str | None, "target that owns it by the newest signed record; null: no record is known"]
    ownership: Annotated[int | None, "its number: `epoch` of the fence"]
    step: Annotated[int | None, "first step under it; null: the run has not been migrated"]
    problem: Annotated[str, "why signed records prove nothing"]
    copies: Annotated[Mapping[str, object], "host -> `kind` (`owner`, `former`, `unsigned`, `claim`) and `reason`"]


class LaunchedEvent(JsonEvent, event="launched", of=("--demo",)):
    """The demo's run has started."""

    run: Annotated[str, RUN]
    target: Annotated[str, TARGET]
    attempt: Annotated[int, "number of the attempt"]


class MetricsEvent(
    JsonEvent,
    event="metrics",
    of=("--metrics",),
    more="all that was measured at the step: `train/loss`, `eval/loss`, ...",
):
    """One step of a run."""

    run: Annotated[str, RUN]
    global_step: Annotated[int, "the step"]
    attempt: Annotated[int, "attempt that computed it"]
    start_number: Annotated[
        int | None, "start of the attempt that computed it; absent in rows of an earlier version"
    ] = None
    values: Mapping[str, object] = field(default_factory=dict[str, object])


class PlotEvent(JsonEvent, event="plot", of=("--metrics",)):
    """The chart that `--plot` wrote."""

    path: Annotated[str, "the file"]
    metric: Annotated[str, "its name"]
    points: Annotated[int, "how many the runs have"]


class SystemEvent(
    JsonEvent,
    event="system",
    of=("--metrics",),
    more="each metric that the host reports: `utilization` (0 to 1), `accelerator_memory` (bytes), `power` (W) and "
    "`temperature` (C) as lists by accelerator, `cpu` (0 to 1), `memory` (bytes), and in bytes a second "
    "`network_received`, `network_sent`, `rdma_received`, `rdma_sent`, `disk_read`, `disk_written`",
):
    """`--system`: what a host of a run reported in five seconds."""

    run: Annotated[str, RUN]
    host: Annotated[str, HOST]
    time: Annotated[float, "UTC seconds of this machine, in the middle of them"]
    global_step: Annotated[int | None, "the run's last step then; null: not known"]
    values: Mapping[str, object] = field(default_factory=dict[str, object])


class LogEvent(JsonEvent, event="log", of=("--log",)):
    """One line of a log."""

    run: Annotated[str, RUN]
    attempt: Annotated[int, "number of the attempt"]
    line: Annotated[str, "the line"]
    number: Annotated[int | None, "--search: number of the line in the log, from 1 on"] = None


class ConfigEvent(JsonEvent, event="config", of=("--config",)):
    """The configuration of one attempt."""

    run: Annotated[str, RUN]
    attempt: Annotated[int, "number of the attempt"]
    config: Annotated[object, "the configuration with all defaults"]


class ChangeEvent(JsonEvent, event="change", of=("--config",)):
    """A difference between two attempts."""

    run: Annotated[str, RUN]
    name: Annotated[str, "dotted name of the field"]
    kind: Annotated[str, "added, removed or changed"]
    before: Annotated[object, "its value in the first attempt"]
    after: Annotated[object, "its value in the second attempt"]


class CheckpointEvent(JsonEvent, event="checkpoint", of=("--checkpoints",)):
    """A checkpoint of a run."""

    run: Annotated[str, RUN]
    host: Annotated[str, "host that has it"]
    store: Annotated[str, "bucket that has it; empty: the host"]
    name: Annotated[str, "its directory"]
    step: Annotated[int, "updates that the state has had"]
    attempt: Annotated[int, "attempt that saved it"]
    complete: Annotated[bool, "it has a manifest, and everything that this lists was written"]
    accepted: Annotated[bool, "the fence accepts it"]
    size: Annotated[int, "bytes"]
    created: Annotated[float, "UTC seconds"]
    root_digest: Annotated[str, "digest of the complete state"]
    epoch: Annotated[int, "number of the ownership under which it was saved"]
    pinned: Annotated[bool, "retention does not delete it"]
    damaged: Annotated[str, "why its manifest cannot be read; empty: it can, or there is none"]


class ArrayEvent(JsonEvent, event="array", of=("--checkpoints", "--verify")):
    """An array of a checkpoint; with --verify only under --deep."""

    name: Annotated[str, "its path in the state"]
    axes: Annotated[Sequence[str], "names of its axes"]
    shape: Annotated[Sequence[int], "sizes of its axes"]
    dtype: Annotated[str, "type of its elements"]
    bytes: Annotated[int, "bytes of its elements"]
    grid: Annotated[Sequence[int], "number of chunks along each axis"]
    norm: Annotated[float | None, "with --deep: Euclidean norm"] = None
    not_finite: Annotated[int | None, "with --deep: number of NaN and infinite elements"] = None


class RepairingEvent(JsonEvent, event="repairing", of=("--repair",)):
    """With --yes: a replacement that is about to be written; nothing else is."""

    host: Annotated[str, HOST]
    run_id: Annotated[str, RUN]
    file: Annotated[str, "path in the run's directory"]
    wrong: Annotated[str, "what is wrong with it"]
    value: Annotated[object, "its new content; null: the file is set aside"]


class RepairEvent(JsonEvent, event="repair", of=("--repair",)):
    """A damaged record and its replacement."""

    host: Annotated[str, HOST]
    run_id: Annotated[str, RUN]
    file: Annotated[str, "path in the run's directory"]
    wrong: Annotated[str, "what is wrong with it"]
    value: Annotated[object, "its new content; null: the file is set aside"]
    evidence: Annotated[Sequence[str], "what determines the value"]
    adopts: Annotated[object, "fence under which the host becomes the signed owner, once its user agrees; null: none"]
    begun: Annotated[float, "UTC seconds at which the signed records begin that an adoption replaces; 0: none"]
    newest: Annotated[
        object, "ownership (`epoch`) and step of the newest complete checkpoint of what is adopted; null: none"
    ]
    missing: Annotated[str, "what would determine it; empty: it is determined"]
    written: Annotated[bool, "it was written now"]
    kept: Annotated[str, "new name of the damaged file"]
