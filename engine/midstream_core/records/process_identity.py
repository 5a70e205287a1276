"""Identity of a process: machine, boot, pid and start time.

`has_ended` says what proves its end.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Optional

from midstream_core.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class ProcessIdentity(JsonRecord):
    """Process of one boot of a machine.

    A pid is reused, a pid with its start time is not.
    """

    boot_id: str
    pid: int
    start_ticks: int
    machine: str = ""  # digest of what identifies the machine; empty: not known, as in older records
    namespace: str = ""  # of its pids, within the boot; empty in older records


def _start_ticks(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat: start time in clock ticks since boot.

    None where there is no such process, or only a zombie.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id() -> str:
    """Return the id of the machine's present boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    process = identify(os.getpid())
    assert process is not None
    return process


def identify(pid: int) -> Optional[ProcessIdentity]:
    """Return the identity of a running process of this machine; None without one."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessIdentity(boot_id(), pid, ticks, machine(), _namespace())


def is_running(process: ProcessIdentity) -> bool:
    """Report whether this very process still runs on this machine.

    False is no proof of the end: the process may run on another machine, or in another container. See `has_ended`.
    """
    return _is_local(process) and _start_ticks(process.pid) == process.start_ticks


def has_ended(process: ProcessIdentity, seen: float) -> bool:
    """Report whether this machine proves that the process has ended.

    A process of this boot has ended if it is not found. Another process of this machine has ended if the machine was
    booted again since the process was last ``seen`` (UTC seconds). False where that process runs, or where it is
    unknown.
    """
    if _is_local(process):
        return _start_ticks(process.pid) != process.start_ticks
    same = bool(process.machine) and process.machine == machine()
    return same and process.boot_id != boot_id() and _boot_time() > seen


def _is_local(process: ProcessIdentity) -> bool:
    """Return whether the process's pid means the same here.

    Boot and namespace of pids are the same.
    """
    return process.boot_id == boot_id() and process.namespace in ("", _namespace())


def _namespace() -> str:
    """Return the name of this process's namespace of pids; empty where there is none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def machine() -> str:
    """Return a digest of machine id, node name and product uuid, stable over reboots.

    The uuid counts where it can be read. Empty without a machine id: a name alone identifies no machine.
    """
    identifier = _line("/etc/machine-id")
    if not identifier:
        return ""
    parts = [identifier, os.uname().nodename, _line("/sys/class/dmi/id/product_uuid")]
    import hashlib  # OpenSSL: 3.5 MB

    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _boot_time() -> float:
    """Return when this machine has started, in UTC seconds."""
    with open("/proc/stat", encoding="utf-8") as file:
        return float(next(line.split()[1] for line in file if line.startswith("btime ")))
