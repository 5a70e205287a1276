"""Host memory that the machine and control groups still leave to this process."""

from __future__ import annotations

import contextlib
import os

# Of a control group: its limit, what it uses, and files in that which the kernel drops when it needs room.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def available_memory(root: str = "/") -> int | None:
    """Return the bytes that this process may still use before the kernel ends it.

    None where the system does not report it. ``root``: the directory that has ``proc`` and ``sys``.
    """
    rooms = [room for room in (_of_machine(root), *_of_groups(root)) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _of_machine(root: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), open(os.path.join(root, "proc/meminfo")) as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_groups(root: str) -> list[int | None]:
    """Return the memory that each control group of this process, or above, leaves.

    None: the group has no limit.
    """
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    rooms: list[int | None] = []
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0" and not controllers:
            top, names = "sys/fs/cgroup", _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        # In a container the path may be that on the machine, where only the top exists.
        parts = [name for name in path.split("/") if name not in ("", "..")]
        for depth in range(len(parts) + 1):
            rooms.append(_room(os.path.join(root, top, *parts[:depth]), *names))
    return rooms


def _room(group: str, limit: str, usage: str, droppable: str) -> int | None:
    try:
        allowed, used = (_read(os.path.join(group, name)).strip() for name in (limit, usage))
        if allowed == "max":
            return None
        statistics = dict(line.split() for line in _read(os.path.join(group, "memory.stat")).splitlines())
        return int(allowed) - int(used) + int(statistics.get(droppable, 0))
    except (OSError, ValueError):
        return None


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
