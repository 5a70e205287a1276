"""Types of what hosts answer: the result of each function of `midstream.remote`, by name.

`results` checks every answer against them. Annotations are values here (no deferred evaluation), and a record of a run
has the type of its record.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from midstream_engine import json_shapes, records

Text = Annotated[str, json_shapes.Text()]  # a file's content: its length is limited by the answer's
Name = Annotated[str, json_shapes.Text(4096)]  # a file's name, which need not be UTF-8
Signed = Annotated[int, json_shapes.Between(-(2**31))]
Measured = Annotated[float, json_shapes.NotFinite()]  # a loss may be NaN
NameOrNone = Name | None
CheckpointName = Annotated[str, records.CHECKPOINT_NAME]
RunId = Annotated[str, records.RUN_ID]

# ------------------------------------------------------------------------------------------------------------- runs


class Point(TypedDict):
    """A directory of a checkpoint."""

    name: CheckpointName
    step: int
    attempt: int
    pinned: bool
    complete: bool
    accepted: bool
    epoch: int
    size: int
    created: float
    root_digest: str
    damaged: str


class Seen(TypedDict):
    """What a process of an attempt said last, and whether it runs."""

    status: records.Status | None
    running: bool


class Described(Seen):
    run_id: str
    fence: records.Fence | None
    lineage: records.Lineage | None
    attempts: list[int]
    attempt: int
    checkpoints: list[Point]


class OfMigration(Seen):
    attempt: int
    epoch: int


class Heard(Seen):
    heard: bool


class TakenOver(Seen):
    outcome: Literal["gone", "told", "unready", "given"]
    sequence: int
    heard: NotRequired[bool]


class Lines(TypedDict):
    text: Text
    offset: int


class NewestState(TypedDict):
    name: CheckpointName
    manifest: records.Manifest
    train: dict[str, Any]


Row = TypedDict(
    "Row",
    {
        "global_step": int,
        "train/loss": Measured,
        "batch_digest": NotRequired[str],
        "time": NotRequired[float],
    },
)


class Rows(Seen):
    rows: list[Row]
    offset: int


class Job(TypedDict):
    job: str
    state: str
    reason: str


class OfProcess(Seen):
    process: int
    supervised: bool
    job: Job | None
    exit: records.ProcessExit | None
    log: list[Text]


class OfAttempt(Seen):
    now: float
    group: list[str]
    processes: list[OfProcess]
    log: list[Text]


class ProcessEvidence(TypedDict):
    process: int
    status: records.Status | None
    launched: records.ProcessIdentity | None
    group: int
    exit: records.ProcessExit | None


class AttemptEvidence(TypedDict):
    attempt: int
    processes: list[ProcessEvidence]
    command: records.Command | None
    restore: records.Restore | None
    first_row: int | None
    last_row: int | None
    running: Text


class CheckpointEvidence(TypedDict):
    name: CheckpointName
    step: int
    attempt: int
    complete: bool
    epoch: int
    root_digest: str
    damaged: str


class Evidence(TypedDict):
    """What is left of a damaged run on a host."""

    found: bool
    now: float
    damaged: dict[str, Text]
    changed: dict[str, float]
    fence: records.Fence | None
    lineage: records.Lineage | None
    migration_lock: records.MigrationLock | None
    config: Text
    checkpoints: list[CheckpointEvidence]
    attempts: list[AttemptEvidence]


class Leftover(TypedDict):
    path: Name
    kind: Literal["torn", "trash", "temporary"]
    bytes: int
    kept: Text


# ---------------------------------------------------------------------------------------------------------- machine


class Disk(TypedDict):
    mount: Name
    device: Name
    total: int
    free: int


class Port(TypedDict):
    device: str
    port: int
    state: str
    gigabits: float | None
    layer: str


class User(TypedDict):
    pid: int
    user: str
    command: Text


class Accelerator(TypedDict):
    index: int
    kind: str
    memory_total: NotRequired[int | None]
    memory_used: NotRequired[int | None]
    utilization: NotRequired[float | None]
    holders: NotRequired[list[int]]
    temperature: NotRequired[float | None]
    power: NotRequired[float | None]
    power_limit: NotRequired[float | None]
    capability: NotRequired[str]


class Inventory(TypedDict):
    system: str
    kernel: str
    glibc: str
    cpu_model: str
    disks: list[Disk]
    infiniband: list[Port]
    clock_synchronized: bool | None


class Facts(TypedDict):
    python: str
    executable: Name
    libc: str
    machine: str
    root: Name
    root_exists: bool
    root_writable: bool
    disk_free: int
    memory_available: int


class Accelerators(TypedDict):
    gpus: list[str]
    driver: str
    cuda: str
    compute: list[str]
    tpus: list[str]
    holders: list[int]
    machine: str


class Interpreters(TypedDict):
    uv: Name | None
    python: Name | None
    version: str | None
    machine: str | None
    newest: str


class Lock(TypedDict):
    path: Name
    user: str
    foreign: bool
    holders: list[int]


class Engine(TypedDict):
    run: RunId
    attempt: int


class Survey(Inventory, Facts):
    accelerators: Accelerators
    interpreters: Interpreters
    holders: list[User]
    locks: list[Lock]
    engines: list[Engine]
    kills_left_behind: bool
    scope: bool


class Command(TypedDict):
    """How a command ended."""

    code: Signed
    output: Text
    error: Text


class Environment(TypedDict):
    python: Name
    how: NotRequired[str]
    base: NotRequired[Name]


class Notice(TypedDict):
    kind: str
    message: str
    when: float | None


class Identity(TypedDict):
    account: str
    source: Name


class Reached(TypedDict):
    seconds: NotRequired[float]
    error: NotRequired[str]


class Knocked(TypedDict):
    address: str | None
    seconds: float | None
    why: str


# ------------------------------------------------------------------------------------------------------------ trees


class Object(TypedDict):
    path: Name
    size: int
    sha256: str


class Part(Object):
    """The bytes of a file of a history that were there when it was looked at."""

    offset: int


class History(TypedDict):
    files: list[Part]
    lineage: records.Lineage | None


class Tree(TypedDict):
    manifest: Text
    problems: list[tuple[Name, Text]]


class Rest(TypedDict):
    text: Text
    objects: list[Object]


class Able(TypedDict):
    why: str
    hint: str


RESULTS: dict[str, Any] = {
    "machine.checks.accelerators": Accelerators,
    "machine.checks.facts": Facts,
    "machine.checks.rehearse": Command,
    "machine.checks.survey": Survey,
    "runs.leftovers.leftovers": list[Leftover],
    "runs.leftovers.running_writer": list[tuple[int, str]],
    "runs.leftovers.remove": list[Name],
    "runs.attempts.attempt": OfAttempt,
    "runs.attempts.give_back": None,
    "runs.attempts.install": Name,
    "runs.attempts.installed": NameOrNone,
    "runs.attempts.remove_secrets": None,
    "runs.attempts.start": records.ProcessIdentity,
    "runs.attempts.submit": str,
    "machine.environments.ask": Command,
    "machine.environments.find": Interpreters,
    "machine.environments.ready": Environment | None,
    "gcs.client.able": Able,
    "gcs.tree.check": str | None,
    "gcs.tree.describe": Tree,
    "gcs.tree.digests": list[str | None],
    "gcs.tree.missing": list[tuple[Name, Text]],
    "copy.growing_checkpoint.commit": None,
    "copy.growing_checkpoint.rest": Rest,
    "copy.growing_checkpoint.tidy": None,
    "runs.ownership.send_command": int,
    "runs.ownership.release": None,
    "runs.ownership.migration_lock": records.MigrationLock | None,
    "runs.ownership.put_fence": records.Fence,
    "runs.ownership.seal": records.Fence,
    "runs.ownership.acquire": records.Fence,
    "copy.history.describe": History,
    "copy.history.digests": list[str],
    "copy.history.merge_lineage": int,
    "copy.history.set_aside": Name,
    "copy.history.sizes": list[int | None],
    "machine.google_identity.own": Identity,
    "machine.network.put_token": None,
    "machine.network.reach": dict[str, Reached],
    "machine.network.see_tokens": list[str],
    "machine.network.take_token": None,
    "runs.losses.rows": list[Row],
    "machine.preemption_notices.read": Notice | None,
    "machine.preemption_notices.worker": int | None,
    "verify.objects.check": str | None,
    "verify.objects.describe": Tree,
    "verify.objects.digests": list[str | None],
    "verify.objects.missing": list[tuple[Name, Text]],
    "copy.tls_peer.probe": Knocked,
    "runs.record_repair.evidence": Evidence,
    "runs.record_repair.put": Name,
    "runs.run_state.attempt_of_migration": OfMigration | None,
    "runs.run_state.claim_attempt": int,
    "runs.run_state.describe": Described,
    "runs.run_state.list_runs": list[RunId],
    "runs.run_state.running_attempt": int,
    "runs.run_state.metrics": Lines,
    "runs.run_state.pin": None,
    "runs.run_state.read_lines": Lines,
    "runs.run_state.read_text": Text,
    "runs.run_state.restore_evidence": records.Restore | None,
    "runs.run_state.signal": bool,
    "runs.run_state.status": Seen,
    "runs.run_state.unpin": None,
    "runs.slurm.commands": dict[str, str],
    "runs.standby_state.clock": float,
    "runs.standby_state.parameter_drift": records.ParameterDrift | None,
    "runs.standby_state.heard": Heard,
    "runs.standby_state.keep_config": None,
    "runs.standby_state.newest_state": NewestState | None,
    "runs.standby_state.command": records.Command | None,
    "runs.standby_state.pin_newest": Point | None,
    "runs.standby_state.put_config": None,
    "runs.standby_state.renew": None,
    "runs.standby_state.rows": Rows,
    "runs.standby_state.take_over": TakenOver,
    "verify.tree.manifest_value": dict[str, Any],
    "verify.tree.store_of": str | None,
}
