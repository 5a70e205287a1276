"""Evidence that the kernel killed a process for want of memory.

Standard library only.
"""

from __future__ import annotations

import re


class MemoryKills:
    """The kernel's counts of processes killed for want of memory since creation."""

    def __init__(self, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> None:
        self._proc, self._cgroups = proc, cgroups
        self._before = self._counts()

    def evidence(self) -> str:
        """Return the kernel's evidence of a kill since creation; empty without one."""
        in_group, on_machine = (
            now is not None and before is not None and now > before for before, now in zip(self._before, self._counts())
        )
        if in_group:
            return "out of memory (the kernel's OOM killer ended a process of its control group)"
        return "out of memory, it seems (the kernel's OOM killer ended a process of this machine)" if on_machine else ""

    def _counts(self) -> tuple[int | None, int | None]:
        """Return the counts of killed processes: this control group's, the machine's."""
        group = _found(f"{self._proc}/self/cgroup", r"^0::(/.*)$")
        in_group = _count(f"{self._cgroups}{group}/memory.events") if group else None
        return in_group, _count(f"{self._proc}/vmstat")


def _count(path: str) -> int | None:
    count = _found(path, r"^oom_kill (\d+)$")
    return None if count is None else int(count)


def _found(path: str, pattern: str) -> str | None:
    try:
        with open(path) as file:
            match = re.search(pattern, file.read(), re.MULTILINE)
    except OSError:
        return None
    return match[1] if match else None
