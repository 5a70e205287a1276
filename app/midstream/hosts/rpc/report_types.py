"""Types of the lines that programs on a host print: the events of each program of `midstream.remote`, by name.

`results` checks each line against them. Events of a run hold its records as they are: whoever reads those reports what
is wrong with one, so that it is that run's trouble and not its host's.
"""

from typing import Any, NotRequired, TypedDict

from midstream.hosts.rpc.result_types import (
    Accelerator,
    Described,
    Disk,
    Measured,
    Name,
    Object,
    Point,
    Port,
    RunId,
    Seen,
    Text,
    User,
)
from midstream_engine import records


class Nothing(TypedDict):
    pass


class Problem(TypedDict):
    message: Text
    kind: NotRequired[str]


class Message(TypedDict):
    text: Text


# ---------------------------------------------------------------------------------------------------- probe.main


class Hello(TypedDict):
    hostname: str
    platform: str
    python: str
    cpus: int


class RunLine(TypedDict):
    run: RunId
    fence: NotRequired[Any]
    lineage: NotRequired[Any]
    store: NotRequired[Any]
    status: NotRequired[Any]
    attempts: NotRequired[list[int]]
    attempt: NotRequired[int]
    running: NotRequired[bool]
    wordless: NotRequired[bool]
    checkpoints: NotRequired[list[Point]]
    damaged: NotRequired[dict[str, Text]]
    trouble: NotRequired[Text]


class MetricsLine(TypedDict):
    run: RunId
    attempt: int
    inode: int
    offset: int
    end: int
    text: Text


class LogLine(TypedDict):
    run: RunId
    attempt: int
    first: bool
    text: Text


class Gone(TypedDict):
    run: RunId


class InventoryLine(TypedDict):
    system: NotRequired[str]
    kernel: NotRequired[str]
    glibc: NotRequired[str]
    cpu_model: NotRequired[str]
    driver: NotRequired[str]
    cuda: NotRequired[str]
    clock_synchronized: NotRequired[bool | None]
    users: NotRequired[list[User]]
    disks: NotRequired[list[Disk]]
    infiniband: NotRequired[list[Port]]


class Beat(TypedDict):
    time: float
    cpu_used: NotRequired[float]
    accelerators: NotRequired[list[Accelerator]]
    memory_total: NotRequired[int]
    memory_used: NotRequired[int]
    disk_total: NotRequired[int]
    disk_free: NotRequired[int]


class Clock(TypedDict):
    ping: int
    time: float


# ------------------------------------------------------------------------------------------------- growing.follow


class Named(TypedDict):
    name: Name


class Whole(Named):
    objects: list[Object]


class Answered(Seen):
    described: Described
    migration_lock: records.MigrationLock | None


# --------------------------------------------------------------------------------------- tree.verify, deep.examine


class Tree(TypedDict):
    bytes: int
    objects: int


class Checked(TypedDict):
    path: Name
    bytes: int
    wrong: NotRequired[Text | None]


class Verified(TypedDict):
    extra: list[Name]
    recorded: str | None
    recomputed: str | None
    problems: list[tuple[Name, Text]]


class Examined(Verified):
    objects: int
    bytes: int
    by: NotRequired[str]


class Array(TypedDict):
    name: str
    norm: NotRequired[Measured]
    not_finite: NotRequired[int]


# --------------------------------------------------------------------------------- environments.build, links.listen


class Built(TypedDict):
    python: Name
    how: str


class Listening(TypedDict):
    port: int
    addresses: list[str]


REPORTS: dict[str, dict[str, Any]] = {
    "verify.array_check.examine": {"array": Array, "checked": Checked, "verified": Examined, "problem": Problem},
    "machine.environments.build": {"line": Message, "done": Built, "problem": Problem},
    "copy.growing_checkpoint.follow": {"named": Named, "whole": Whole, "answered": Answered},
    "machine.network.listen": {"listening": Listening, "done": Nothing, "problem": Problem},
    "machine.probe.main": {
        "hello": Hello,
        "run": RunLine,
        "metrics": MetricsLine,
        "log": LogLine,
        "gone": Gone,
        "inventory": InventoryLine,
        "beat": Beat,
        "clock": Clock,
    },
    "verify.tree.verify": {"tree": Tree, "checked": Checked, "verified": Verified, "problem": Problem},
}

# Programs whose lines are checked where they are read: those of a copy (`transfer.reports`), and those that print
# numbers (`machine.checks.clock`).
ELSEWHERE = frozenset(
    {
        "copy.session.serve",
        "machine.checks.clock",
        "gcs.session.serve",
        "gcs.receiver.receive",
        "gcs.sender.send",
        "copy.tls_peer.answer",
        "copy.disk_receiver.receive",
        "copy.sender.send",
    }
)
