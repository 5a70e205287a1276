"""Types of what hosts answer: the result of each function of `midstream.remote`, by name.

`results` checks every answer against them. Annotations are values here (no deferred evaluation), and a record of a run
has the type of its record.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from midstream_engine import records, shapes

Text = Annotated[str, shapes.Text()]  # a file's content: its length is limited by the answer's
Name = Annotated[str, shapes.Text(4096)]  # a file's name, which need not be UTF-8
Signed = Annotated[int, shapes.Between(-(2**31))]
Measured = Annotated[float, shapes.NotFinite()]  # a loss may be NaN
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
    alive: bool


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
    serial: int
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
    order: records.Order | None
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
    mover: records.Mover | None
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
    fix: str


RESULTS: dict[str, Any] = {
    "checks.accelerators": Accelerators,
    "checks.facts": Facts,
    "checks.rehearse": Command,
    "checks.survey": Survey,
    "clean.leftovers": list[Leftover],
    "clean.living": list[tuple[int, str]],
    "clean.remove": list[Name],
    "engine.attempt": OfAttempt,
    "engine.give_back": None,
    "engine.install": Name,
    "engine.installed": NameOrNone,
    "engine.remove_secrets": None,
    "engine.start": records.ProcessIdentity,
    "engine.submit": str,
    "environments.ask": Command,
    "environments.find": Interpreters,
    "environments.ready": Environment | None,
    "gcs.able": Able,
    "gcs_tree.check": str | None,
    "gcs_tree.describe": Tree,
    "gcs_tree.digests": list[str | None],
    "gcs_tree.missing": list[tuple[Name, Text]],
    "growing.commit": None,
    "growing.rest": Rest,
    "growing.tidy": None,
    "hands.give_order": int,
    "hands.let_go": None,
    "hands.mover": records.Mover | None,
    "hands.put_fence": records.Fence,
    "hands.seal": records.Fence,
    "hands.take": records.Fence,
    "history.describe": History,
    "history.digests": list[str],
    "history.merge_lineage": int,
    "history.set_aside": Name,
    "history.sizes": list[int | None],
    "identity.own": Identity,
    "links.put_token": None,
    "links.reach": dict[str, Reached],
    "links.see_tokens": list[str],
    "links.take_token": None,
    "losses.rows": list[Row],
    "notices.read": Notice | None,
    "notices.worker": int | None,
    "objects.check": str | None,
    "objects.describe": Tree,
    "objects.digests": list[str | None],
    "objects.missing": list[tuple[Name, Text]],
    "peer.knock": Knocked,
    "repairs.evidence": Evidence,
    "repairs.put": Name,
    "runs.attempt_of_migration": OfMigration | None,
    "runs.claim_attempt": int,
    "runs.describe": Described,
    "runs.list_runs": list[RunId],
    "runs.living_attempt": int,
    "runs.metrics": Lines,
    "runs.pin": None,
    "runs.read_lines": Lines,
    "runs.read_text": Text,
    "runs.restore_evidence": records.Restore | None,
    "runs.signal": bool,
    "runs.status": Seen,
    "runs.unpin": None,
    "slurm.commands": dict[str, str],
    "standby.clock": float,
    "standby.crossing": records.Crossing | None,
    "standby.heard": Heard,
    "standby.keep_config": None,
    "standby.newest_state": NewestState | None,
    "standby.order": records.Order | None,
    "standby.pin_newest": Point | None,
    "standby.put_config": None,
    "standby.renew": None,
    "standby.rows": Rows,
    "standby.take_over": TakenOver,
    "tree.manifest_value": dict[str, Any],
    "tree.store_of": str | None,
}
