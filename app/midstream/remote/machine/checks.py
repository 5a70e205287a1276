"""What a preflight wants to know of a host. Looks, and changes nothing. Runs on the host; standard library only."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import sys
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from midstream.remote.machine import environments, inventory, nvidia, tpu
from midstream.remote.runs import attempts, run_state

MINIMUM = (3, 11)  # of the engine's interpreter
LOCKS = ("/tmp/libtpu_lockfile",)


def facts(root: str) -> Dict[str, Any]:
    """Python, C library, disk and memory in bytes, and whether ``root`` could be written."""
    existing = root
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    disk = shutil.disk_usage(existing)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "root": root,
        "root_exists": os.path.isdir(root),
        "root_writable": os.access(existing, os.W_OK | os.X_OK),
        "disk_free": disk.free,
        "memory_available": _memory_available(),
    }


def survey(root: str) -> Dict[str, Any]:
    """Everything that a check wants to know of this host at once: ``facts``, the inventory, and what is in the way."""
    found = accelerators()
    return {
        **inventory.collect(),
        **facts(root),
        "accelerators": found,
        "interpreters": environments.find(MINIMUM),
        "holders": inventory.processes(found["holders"]),
        "locks": locks(),
        "engines": engines(root),
        "kills_left_behind": attempts.kills_left_behind(),
        "scope": attempts.detached(["true"]) != ["true"],
    }


def clock() -> int:
    """A streaming program: this host's time, in UTC seconds, for every line of stdin."""
    for _ in iter(sys.stdin.buffer.readline, b""):
        sys.stdout.buffer.write("{!r}\n".format(time.time()).encode())
        sys.stdout.buffer.flush()
    return 0


def clock_synchronized() -> Optional[bool]:
    """Whether the clock follows a time server; None where nobody says."""
    return inventory.collect()["clock_synchronized"]


def locks(paths: Sequence[str] = LOCKS, proc: str = "/proc") -> List[Dict[str, Any]]:
    """Lock files of accelerators' drivers that lie here: ``{path, user, foreign, holders}``, with the pids that have
    them open. One that nobody has open was left behind."""
    found = []
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
        found.append({"path": path, "user": user, "foreign": foreign, "holders": _open_in(path, proc)})
    return found


def _open_in(path: str, proc: str) -> List[int]:
    pids = []
    for pid in os.listdir(proc):
        if not pid.isdigit():
            continue
        try:
            names = os.listdir(os.path.join(proc, pid, "fd"))
        except OSError:  # gone meanwhile, or another user's
            continue
        for name in names:
            try:
                if os.readlink(os.path.join(proc, pid, "fd", name)) == path:
                    pids.append(int(pid))
                    break
            except OSError:
                continue
    return pids


def engines(root: str) -> List[Dict[str, Any]]:
    """Runs of this root that are alive: ``{run, attempt}``."""
    living = {run_id: run_state.running_attempt(root, run_id) for run_id in run_state.list_runs(root)}
    return [{"run": run_id, "attempt": attempt} for run_id, attempt in living.items() if attempt]


def rehearse(root: str, config: str, argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Dict[str, Any]:
    """Run the engine's rehearsal with ``config``, whose path takes the place of ``{config}`` in ``argv``."""
    os.makedirs(root, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".rehearsal-", dir=root) as directory:
        path = os.path.join(directory, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        return environments.ask([path if word == "{config}" else word for word in argv], env, seconds)


def accelerators() -> Dict[str, Any]:
    """``{gpus, driver, compute, tpus, holders, machine}``: kinds of GPUs with their driver and compute capabilities,
    kinds of TPUs (one entry a JAX device), and the pids that hold them."""
    smi = nvidia.Nvidia()
    gpus = smi.look()
    chips = [] if gpus else tpu.devices(tpu.chips(), tpu.holders())
    held = {pid for each in [*gpus, *chips] for pid in each.get("holders", ())}
    return {
        "gpus": [each["kind"] for each in gpus],
        "driver": smi.driver,
        "cuda": smi.cuda,
        "compute": sorted({each["capability"] for each in gpus if each.get("capability")}),
        "tpus": [each["kind"] for each in chips],
        "holders": sorted(held),
        "machine": platform.machine(),
    }


def _memory_available() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return 0
