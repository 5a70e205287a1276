"""What is known of the fleet at one moment: immutable values that screens, flags and plans read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from midstream_engine import records

CONNECTING, LIVE, STALE, DOWN = "connecting", "live", "stale", "down"


@dataclass(frozen=True)
class Accelerator:
    """One accelerator as the host reports it. None where the host does not say."""

    index: int
    kind: str  # "NVIDIA A100-SXM4-80GB", "TPU v4", "cpu" for a virtual device
    memory_total: int | None = None  # bytes
    memory_used: int | None = None  # bytes
    utilization: float | None = None  # 0..1, busy time
    users: tuple[int, ...] = ()  # pids that use it
    temperature: float | None = None  # degrees Celsius
    power: float | None = None  # watts
    power_limit: float | None = None  # watts
    capability: str = ""  # CUDA compute capability: "9.0"


@dataclass(frozen=True)
class AcceleratorUser:
    """A process that holds accelerators. Empty where the host does not let us see it."""

    pid: int
    user: str
    command: str  # the beginning of its command line, without options


@dataclass(frozen=True)
class Disk:
    """A mounted file system. Sizes in bytes."""

    mount: str
    device: str
    total: int
    free: int


@dataclass(frozen=True)
class InfinibandPort:
    """A port of an RDMA device."""

    device: str  # "mlx5_0"
    port: int
    state: str  # "active", "down", "init", ...
    gigabits: float | None  # per second
    layer: str  # "InfiniBand"; "Ethernet" is RoCE


@dataclass(frozen=True)
class Machine:
    """The host itself. Sizes in bytes."""

    hostname: str
    platform: str  # "Linux-6.1 x86_64 glibc2.36"
    python: str  # "3.11.7"; empty where there is none
    cpus: int
    cpu_used: float  # 0..1
    memory_total: int
    memory_used: int
    disk_total: int  # of the file system of the root
    disk_free: int
    clock_skew: float  # seconds, host minus operator, error at most half the round trip
    accelerators: tuple[Accelerator, ...] = ()
    system: str = ""  # "Ubuntu 22.04.4 LTS"
    kernel: str = ""
    glibc: str = ""  # "2.35"; empty where it is not known, or another libc
    cpu_model: str = ""
    driver: str = ""  # NVIDIA's kernel driver: "550.54.15"
    cuda: str = ""  # the newest CUDA that it runs: "12.4"
    users: tuple[AcceleratorUser, ...] = ()
    disks: tuple[Disk, ...] = ()
    infiniband: tuple[InfinibandPort, ...] = ()
    clock_synchronized: bool | None = None  # by a time server; None where the host does not say


@dataclass(frozen=True)
class HostView:
    """A host of the fleet file and what is known of it."""

    name: str
    kind: str  # "local", "ssh"
    link: str  # CONNECTING, LIVE, STALE or DOWN
    last_seen: float | None = None  # UTC seconds
    error: str = ""  # one line: why it is not live, and what mends it
    machine: Machine | None = None


@dataclass(frozen=True)
class CheckpointView:
    """A directory under ``checkpoints/``."""

    name: str
    step: int
    attempt: int
    complete: bool
    accepted: bool  # by the fence
    size: int = 0  # bytes
    created: float = 0.0
    root_digest: str = ""
    epoch: int = 1
    pinned: bool = False
    damaged: str = ""  # why its manifest, which is there, cannot be read


@dataclass(frozen=True)
class RunView:
    """One copy of a run: what lies under one host's root. A migrated run has several; see ``current``."""

    run_id: str
    host: str
    fence: records.Fence | None
    lineage: records.Lineage | None
    attempt: int  # newest attempt; 0 where there is none
    status: records.Status | None  # its process 0
    running: bool  # positive evidence that the process runs
    checkpoints: tuple[CheckpointView, ...] = ()
    curve: Sequence[Mapping[str, Any]] = field(default=(), repr=False)  # spliced rows; see records.splice
    log: Sequence[str] = field(default=(), repr=False)  # the last lines of the newest attempt's process 0
    trouble: str = ""  # one line: what of its directory cannot be read; the rest is what was known before
    # (file, what is wrong with it) of records that are there and cannot be read: never the same as absent.
    damaged: tuple[tuple[str, str], ...] = ()
    store: str = ""  # gs://bucket/prefix, where its checkpoints lie there and not on its host
    wordless: bool = False  # what was started has ended before it had a status
    listed: bool = True  # whether its checkpoints were looked for: a bucket is asked from here, and may be slow

    @property
    def key(self) -> tuple[str, str]:
        return self.host, self.run_id

    @property
    def epoch(self) -> int:
        return self.fence.epoch if self.fence else 0

    @property
    def state(self) -> str:
        """The status' state; ``lost`` where it claims to run and no such process does, or ended before it had a status
        (on a full disk, say); ``damaged`` where records cannot be read and no status is known; ``empty`` where nothing
        was started."""
        if self.status is None and self.damaged:
            return "damaged"
        if self.status is None:
            return "lost" if self.wordless else "empty"
        if self.status.state not in records.ENDED and not self.running:
            return "lost"
        return self.status.state

    @property
    def step(self) -> int | None:
        return self.status.step if self.status else None

    @property
    def loss(self) -> float | None:
        for row in reversed(self.curve):
            if "train/loss" in row:
                return row["train/loss"]
        return None


@dataclass(frozen=True)
class Snapshot:
    """The fleet at one moment. ``version`` grows with every change."""

    version: int
    time: float
    hosts: tuple[HostView, ...] = ()
    runs: tuple[RunView, ...] = ()

    @cached_property
    def _by_host(self) -> dict[str, HostView]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _by_run(self) -> dict[str, list[RunView]]:
        found: dict[str, list[RunView]] = {}
        for run in self.runs:
            found.setdefault(run.run_id, []).append(run)
        return found

    @property
    def run_count(self) -> int:
        """Runs, however many copies there are of each."""
        return len(self._by_run)

    def host(self, name: str) -> HostView | None:
        return self._by_host.get(name)

    def copies(self, run_id: str) -> tuple[RunView, ...]:
        """Every copy of the run, the one with the highest fence epoch first. A sealed source knows the new epoch too,
        but has run nothing under it."""

        def newest(run: RunView) -> tuple[int, int, int, int]:
            process = run.status.process if run.status else 0
            return run.epoch, run.status.epoch if run.status else 0, run.attempt, -process

        found = self._by_run.get(run_id, ())
        return tuple(sorted(found, key=newest, reverse=True)) if len(found) > 1 else tuple(found)

    def members(self, run: RunView) -> tuple[RunView, ...]:
        """The views of one attempt on all hosts that carry it out, process 0 first; itself where it has one."""
        if run.status is None or run.status.processes < 2:
            return (run,)

        status = run.status

        def together(other: RunView) -> bool:
            return (
                other.status is not None
                and (other.attempt, other.status.epoch) == (run.attempt, status.epoch)
                and other.status.processes == status.processes
            )

        return tuple(other for other in self.copies(run.run_id) if together(other))

    def current(self) -> tuple[RunView, ...]:
        """One view a run: the copy with the highest fence epoch."""
        return tuple(
            found[0] if len(found) == 1 else self.copies(run_id)[0] for run_id, found in sorted(self._by_run.items())
        )
