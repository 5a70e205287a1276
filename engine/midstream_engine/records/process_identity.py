"""Identity of a process: boot, pid and start time."""

from __future__ import annotations

import dataclasses
import os
from typing import Optional

from midstream_engine.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class ProcessIdentity(JsonRecord):
    """Process of one boot of a machine.

    A pid is reused, a pid with its start time is not.
    """

    boot_id: str
    pid: int
    start_ticks: int


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
    return None if ticks is None else ProcessIdentity(boot_id(), pid, ticks)


def is_running(process: ProcessIdentity) -> bool:
    """Report whether this very process still runs on this machine."""
    return process.boot_id == boot_id() and _start_ticks(process.pid) == process.start_ticks
