"""Events about runs, their checkpoints, metrics and logs."""

from __future__ import annotations

from midstream.json_events.json_event import HOST, RUN, TARGET, JsonEvent

RUN_EVENTS = (
    JsonEvent(
        "run", ("--status",), "one copy of a run",
        {
            "run": RUN,
            "host": "where this copy is",
            "state": "state of its newest attempt",
            "running": "its process runs: there is positive evidence",
            "step": "step of the newest attempt",
            "loss": "the last training loss",
            "epoch": "the fence's epoch, as this host shows it: `ownership` has what is proven",
            "attempt": "number of the newest attempt",
            "fence": "the fence",
            "problem": "which of its files cannot be read",
            "reason": "why it failed, or what its job waits for, in one line",
            "exit": "how its process ended, as its supervisor recorded it",
            "damaged": "file -> error of records that cannot be read",
            "store": "bucket of its checkpoints; empty: on the host",
            "lineage": "its attempts: target, devices, steps",
            "status": "the engine's status",
            "checkpoints": "its checkpoints, each with the fields of the event `checkpoint`",
        },
    ),
    JsonEvent(
        "ownership", ("--status",), "the proven owner of a run, once all hosts have answered or are unreachable",
        {
            "run": RUN,
            "owner": "target that owns it by the newest signed record; null: no record is known",
            "ownership": "its number, the epoch of the fence",
            "step": "first step under it; null: the run has not been migrated",
            "problem": "why signed records prove nothing",
            "copies": "host -> `kind` (`owner`, `former`, `unsigned`, `claim`) and `reason`",
        },
    ),
    JsonEvent(
        "launched", ("--demo",), "the demo's run has started",
        {"run": RUN, "target": TARGET, "attempt": "number of the attempt"},
    ),
    JsonEvent(
        "metrics", ("--metrics",), "one step of a run",
        {
            "run": RUN,
            "global_step": "the step",
            "attempt": "attempt that computed it",
            "start_number": "start of the attempt that computed it; absent in rows of an earlier version",
        },
        "all that was measured at the step: `train/loss`, `eval/loss`, ...",
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
        "repairing", ("--repair",), "with --yes: a replacement that is about to be written; nothing else is",
        {
            "host": HOST,
            "run_id": RUN,
            "file": "path in the run's directory",
            "wrong": "what is wrong with it",
            "value": "its new content; null: the file is set aside",
        },
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
            "adopts": "fence under which the host becomes the signed owner, once its user agrees; null: none",
            "begun": "UTC seconds at which the signed records begin that an adoption replaces; 0: none",
            "newest": "epoch and step of the newest complete checkpoint of what is adopted; null: none",
            "missing": "what would determine it; empty: it is determined",
            "written": "it was written now",
            "kept": "new name of the damaged file",
        },
    ),
)  # fmt: skip
