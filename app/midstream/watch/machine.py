"""Hardware and software of a host: accelerators, disks, versions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """One accelerator as the host reports it. None: not reported."""

    index: int
    kind: str  # "NVIDIA A100-SXM4-80GB", "TPU v4", "cpu" for a virtual device
    memory_total: int | None = None  # bytes
    memory_used: int | None = None  # bytes
    utilization: float | None = None  # 0..1, busy time
    pids: tuple[int, ...] = ()  # of the processes that use it
    temperature: float | None = None  # degrees Celsius
    power: float | None = None  # watts
    power_limit: float | None = None  # watts
    capability: str = ""  # CUDA compute capability: "9.0"


@dataclass(frozen=True)
class AcceleratorUser:
    """Process that uses accelerators.

    Empty where the host does not permit to read it.
    """

    pid: int
    user: str
    command: str  # the first words of its command line, without options
    started: float | None = None  # UTC seconds by the host's clock
    memory: int | None = None  # bytes on all accelerators
    run: str = ""  # the run that it trains


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
    python: str  # "3.11.7"; empty: none
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
    glibc: str = ""  # "2.35"; empty: unknown, or another libc
    cpu_model: str = ""
    driver: str = ""  # NVIDIA's kernel driver: "550.54.15"
    cuda: str = ""  # the newest CUDA that the driver supports: "12.4"
    users: tuple[AcceleratorUser, ...] = ()
    disks: tuple[Disk, ...] = ()
    infiniband: tuple[InfinibandPort, ...] = ()
    clock_synchronized: bool | None = None  # by a time server; None: not reported
