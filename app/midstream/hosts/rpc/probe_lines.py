"""Types of the lines of the probe on a host, by the name of their event.

A line stays JSON, checked by `line_of`: a value that it leaves out has not changed. The records in a run's lines are
checked by their readers, so that a damaged record is an error of the run and not of its host. Annotations are values
here (no deferred evaluation).
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.runs.run_state import RunId
from midstream_host.shapes import FileName, Text

RunIdOrEmpty = Annotated[str, records.RUN_ID_OR_EMPTY]


class DiskLine(TypedDict):
    mount: FileName
    device: FileName
    total: int
    free: int


class PortLine(TypedDict):
    device: str
    port: int
    state: str
    gigabits: float | None
    layer: str


class UserLine(TypedDict):
    pid: int
    user: str
    command: Text
    started: NotRequired[float | None]
    memory: NotRequired[int | None]
    run: NotRequired[RunIdOrEmpty]


class AcceleratorLine(TypedDict):
    index: int
    kind: str
    memory_total: NotRequired[int | None]
    memory_used: NotRequired[int | None]
    utilization: NotRequired[float | None]
    pids: NotRequired[list[int]]
    temperature: NotRequired[float | None]
    power: NotRequired[float | None]
    power_limit: NotRequired[float | None]
    capability: NotRequired[str]


class Hello(TypedDict):
    hostname: str
    platform: str
    python: str
    cpus: int


class RunLine(TypedDict):
    run: RunId
    fence: NotRequired[JsonValue]
    lineage: NotRequired[object]
    ownership: NotRequired[Text]
    store: NotRequired[JsonValue]
    status: NotRequired[JsonValue]
    attempts: NotRequired[list[int]]
    attempt: NotRequired[int]
    running: NotRequired[bool]
    unproven: NotRequired[Text]
    job_remark: NotRequired[Text]
    ended_without_status: NotRequired[bool]
    exit: NotRequired[object]
    checkpoints: NotRequired[list[ListedCheckpoint]]
    damaged: NotRequired[dict[str, Text]]
    problem: NotRequired[Text]


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
    process: NotRequired[int]
    first: bool
    offset: NotRequired[int]
    end: NotRequired[int]
    text: Text


class Removed(TypedDict):
    run: RunId


class InventoryLine(TypedDict):
    system: NotRequired[str]
    kernel: NotRequired[str]
    glibc: NotRequired[str]
    cpu_model: NotRequired[str]
    driver: NotRequired[str]
    cuda: NotRequired[str]
    clock_synchronized: NotRequired[bool | None]
    users: NotRequired[list[UserLine]]
    disks: NotRequired[list[DiskLine]]
    infiniband: NotRequired[list[PortLine]]


class Beat(TypedDict):
    time: float
    cpu_used: NotRequired[float]
    accelerators: NotRequired[list[AcceleratorLine]]
    memory_total: NotRequired[int]
    memory_used: NotRequired[int]
    disk_total: NotRequired[int]
    disk_free: NotRequired[int]
    network_received: NotRequired[int | None]  # bytes a second, as all rates
    network_sent: NotRequired[int | None]
    rdma_received: NotRequired[int | None]
    rdma_sent: NotRequired[int | None]
    disk_read: NotRequired[int | None]
    disk_written: NotRequired[int | None]


class Clock(TypedDict):
    ping: int
    time: float


PROBE: Mapping[str, Any] = {
    "hello": Hello,
    "run": RunLine,
    "metrics": MetricsLine,
    "log": LogLine,
    "removed": Removed,
    "inventory": InventoryLine,
    "beat": Beat,
    "clock": Clock,
}
