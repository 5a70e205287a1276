"""Facts of a host for `--check`. Runs on the host; standard library only."""

from __future__ import annotations

import dataclasses
import os
import platform
import pwd
import shutil
import sys
import tempfile
import time
from typing import List, Mapping, Optional, Sequence

from midstream_core.json_types import int_of, optional_list
from midstream_host.declarations import once, program, reads
from midstream_host.machine import environments, inventory, nvidia, tpu
from midstream_host.runs import process_start, run_state
from midstream_host.runs.run_state import RunId
from midstream_host.shapes import FileName

MINIMUM = (3, 11)  # of the engine's interpreter
LOCKS = ("/tmp/libtpu_lockfile",)


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """Python, C library, and bytes of disk and memory of a host."""

    python: str
    executable: FileName
    libc: str
    machine: str
    root: FileName
    root_exists: bool
    root_writable: bool  # or could be created
    disk_free: int
    memory_available: int
    files_free: Optional[int] = None  # that the file system can still have; None: it has no such limit


@dataclasses.dataclass(frozen=True)
class AcceleratorKinds:
    """The accelerators of a host by kind, and the processes that have them open.

    Of a GPU of which a MIG device is used, it is not known on which of its devices ``unattributed`` are.
    """

    gpus: List[str]
    driver: str
    cuda: str
    compute: List[str]  # compute capabilities
    tpus: List[str]  # one entry per JAX device
    pids: List[int]  # processes that have them open
    machine: str
    missing: int = 0  # visible entries, the last ones, that do not count: the first of them is no device here
    unattributed: List[int] = dataclasses.field(default_factory=lambda: [])  # processes on a GPU that is shared


@dataclasses.dataclass(frozen=True)
class LockFile:
    """A lock file of an accelerator's driver.

    A file without ``pids`` (processes that have it open) is stale.
    """

    path: FileName
    user: str
    foreign: bool
    pids: List[int]


@dataclasses.dataclass(frozen=True)
class RunningEngine:
    """A run that an engine of this host trains."""

    run: RunId
    attempt: int


@dataclasses.dataclass(frozen=True)
class Survey:
    """Facts of a host for `--check`."""

    facts: HostFacts
    accelerators: AcceleratorKinds
    interpreters: environments.Interpreters
    infiniband: List[inventory.Port]
    clock_synchronized: Optional[bool]
    accelerator_users: List[inventory.AcceleratorProcess]
    locks: List[LockFile]
    engines: List[RunningEngine]
    kills_left_behind: bool  # systemd-logind ends a user's processes with the last login
    scope: bool  # systemd starts an engine in a scope of its own
    unattributed: List[inventory.AcceleratorProcess] = dataclasses.field(default_factory=lambda: [])


@reads()
def facts(root: str) -> HostFacts:
    """Return Python, C library, disk and memory in bytes, and if ``root`` is writable."""
    existing = root
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    disk, system = shutil.disk_usage(existing), os.statvfs(existing)
    return HostFacts(
        python=platform.python_version(),
        executable=sys.executable,
        libc=" ".join(platform.libc_ver()),
        machine=platform.machine(),
        root=root,
        root_exists=os.path.isdir(root),
        root_writable=os.access(existing, os.W_OK | os.X_OK),
        disk_free=disk.free,
        memory_available=_memory_available(),
        files_free=system.f_favail if system.f_files else None,
    )


@reads()
def survey(root: str, visible: Optional[List[str]] = None) -> Survey:
    """Collect the facts of this host in one call; ``visible`` as of `accelerators`."""
    devices = accelerators(visible)
    return Survey(
        facts=facts(root),
        accelerators=devices,
        interpreters=environments.find(MINIMUM),
        infiniband=[inventory.Port(**port) for port in inventory.infiniband()],
        clock_synchronized=clock_synchronized(),
        accelerator_users=[inventory.AcceleratorProcess(**user) for user in inventory.processes(devices.pids)],
        locks=locks(),
        engines=engines(root),
        kills_left_behind=process_start.kills_left_behind(),
        scope=process_start.detached(["true"]) != ["true"],
        unattributed=[inventory.AcceleratorProcess(**user) for user in inventory.processes(devices.unattributed)],
    )


@program
def clock() -> int:
    """Print this host's time, in UTC seconds, for every line of stdin. A program."""
    for _ in iter(sys.stdin.buffer.readline, b""):
        sys.stdout.buffer.write("{!r}\n".format(time.time()).encode())
        sys.stdout.buffer.flush()
    return 0


def clock_synchronized() -> Optional[bool]:
    """Return whether the clock follows a time server.

    Return None where timedatectl does not report it.
    """
    return inventory.clock_synchronized()


def locks(paths: Sequence[str] = LOCKS, proc: str = "/proc") -> List[LockFile]:
    """The lock files of accelerators' drivers on this host."""
    files: List[LockFile] = []
    for path in paths:
        try:
            uid = os.stat(path).st_uid
        except OSError:
            continue
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        foreign = os.geteuid() not in (0, uid)
        files.append(LockFile(path, user, foreign, _open_in(path, proc)))
    return files


def _open_in(path: str, proc: str) -> List[int]:
    pids: List[int] = []
    for pid in os.listdir(proc):
        if not pid.isdecimal():
            continue
        try:
            names = os.listdir(os.path.join(proc, pid, "fd"))
        except OSError:  # the process has exited, or is another user's
            continue
        for name in names:
            try:
                if os.readlink(os.path.join(proc, pid, "fd", name)) == path:
                    pids.append(int(pid))
                    break
            except OSError:
                continue
    return pids


def engines(root: str) -> List[RunningEngine]:
    """The runs of this root that are running."""
    running = {run_id: run_state.running_attempt(root, run_id) for run_id in run_state.list_runs(root)}
    return [RunningEngine(run_id, attempt) for run_id, attempt in running.items() if attempt]


@once("it runs for minutes")
def rehearse(
    root: str, config: str, argv: Sequence[str], env: Mapping[str, str], seconds: float
) -> environments.CommandResult:
    """Run the engine's rehearsal with a config.

    Args:
        root: Root directory of the host; the config is written below it for as long as the rehearsal runs.
        config: Text of the config.
        argv: The program and its arguments; the config's path takes the place of ``{config}``.
        env: Variables that are added to this environment.
        seconds: Time limit.
    """
    os.makedirs(root, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=root) as directory:
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        return environments.run_command([path if word == "{config}" else word for word in argv], env, seconds)


@reads()
def accelerators(visible: Optional[List[str]] = None) -> AcceleratorKinds:
    """The accelerators of this host by kind, and the processes that have them open.

    ``visible``: entries of ``CUDA_VISIBLE_DEVICES``, whose GPUs alone count; None: all.
    """
    smi = nvidia.Nvidia(visible=visible)
    gpus = smi.look()
    chips = [] if gpus or smi.missing else tpu.devices(tpu.chips(), tpu.users())
    pids = {int_of(pid) for device in [*gpus, *chips] for pid in optional_list(device.get("pids"))}
    return AcceleratorKinds(
        gpus=[str(gpu["kind"]) for gpu in gpus],
        driver=smi.driver,
        cuda=smi.cuda,
        compute=sorted({str(gpu["capability"]) for gpu in gpus if gpu.get("capability")}),
        tpus=[str(chip["kind"]) for chip in chips],
        pids=sorted(pids),
        machine=platform.machine(),
        missing=len(smi.missing),
        unattributed=smi.unattributed,
    )


def _memory_available() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return 0
