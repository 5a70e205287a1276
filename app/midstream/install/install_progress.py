"""Progress of pip and uv from their output: packages, bytes and the time left.

Standard library only: ``locks/progress`` uses it before anything is installed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from midstream import format

LEAST_SHARE = 0.1  # of the bytes, before the time that is left is estimated
UNPACK_RATE = 12e6  # bytes of wheels a second that pip unpacks and compiles on a core; uv takes less
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)(?: ; ([^\\\n]*))?", re.MULTILINE)
_PYTHON_BOUND = re.compile(r"python(?:_full)?_version (<|>=) '([\d.]+)'")
_FOREIGN = re.compile(r"sys_platform == '(win32|darwin|emscripten)'|platform_system == 'Windows'")
_PIP_WHEEL = re.compile(
    r"^\s*(?:Downloading|Using cached|Processing)\s+(\S*/)?([A-Za-z0-9_.]+?)-\d[^/\s]*\.whl(?=\s|$)"
)
_UV_DOWNLOAD = re.compile(r"^\s*(Downloading|Downloaded|Building|Built)\s+([A-Za-z0-9_-]+)(?:\s|$)")


@dataclass(frozen=True)
class InstallState:
    """Progress of an installation.

    Bytes are those of wheels; 0 in all if the sizes are unknown.
    """

    packages: int
    bytes_total: int
    bytes_done: int = 0
    package: str = ""  # that is being downloaded
    begun: bool = False  # the installer has printed something
    unpacking: bool = False
    seconds_left: float | None = None  # None: unknown

    @property
    def size(self) -> str:
        """Packages and bytes of the installation."""
        size = f", {format.size(self.bytes_total)}" if self.bytes_total else ""
        return f"{self.packages} packages{size}"

    @property
    def share(self) -> float:
        """Part of the bytes that is downloaded, 0 to 1."""
        return self.bytes_done / self.bytes_total if self.bytes_total else 0.0

    def __str__(self) -> str:
        if not self.begun:
            return f"preparing {self.size}"
        if self.unpacking:
            return f"unpacking {self.size}"
        where = f": {self.share:.0%}" if self.bytes_total else ""
        return f"downloading {self.size}{where}" + (f", {self.package}" if self.package else "")


class InstallProgress:
    """Follows the output of pip or uv, line by line."""

    def __init__(self, lock: str, sizes: Mapping[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        """Start now.

        Args:
            lock: Text of the lock file.
            sizes: Bytes of wheels by ``name==version``.
            clock: Seconds.
        """
        self._sizes = wheel_sizes(lock, sizes)
        self._clock, self._began = clock, clock()
        self._begun: dict[str, None] = {}  # packages in the order in which their downloads began
        self._done: set[str] = set()
        self._unpacking_since: float | None = None

    @property
    def state(self) -> InstallState:
        """The present progress."""
        total = sum(self._sizes.values())
        done = sum(self._sizes.get(name, 0) for name in self._done)
        now = self._clock()
        seconds = None
        unpack = total / UNPACK_RATE
        if self._unpacking_since is not None:
            done, seconds = total, unpack - (now - self._unpacking_since)
        elif total and done >= LEAST_SHARE * total:
            seconds = (now - self._began) * (total - done) / done + unpack
        current = next((name for name in reversed(self._begun) if name not in self._done), "")
        unpacking = self._unpacking_since is not None
        seconds = seconds if seconds is not None and seconds > 0 else None
        return InstallState(len(self._sizes), total, done, current, bool(self._begun) or unpacking, unpacking, seconds)

    def read(self, line: str) -> bool:
        """Read a line of the installer's output. Return whether it changed the state."""
        if line.startswith(("Installing collected packages", "Prepared ")):
            self._done |= self._sizes.keys()
            self._unpacking_since = self._clock()
            return True
        wheel = _PIP_WHEEL.match(line)
        if wheel:
            self._done |= self._begun.keys()  # pip downloads one after the other
            self._begun[normalized(wheel[2])] = None
            return True
        download = _UV_DOWNLOAD.match(line)
        if download:
            name = normalized(download[2])
            if download[1] in ("Downloaded", "Built"):
                self._done.add(name)
            self._begun[name] = None
            return True
        return False


def pinned_versions(lock: str, python: str) -> dict[str, str]:
    """Return the versions that a lock pins for Python ``3.12.1`` or another one."""
    return {name: version for name, version, marker in PIN.findall(lock) if serves(marker, python)}


def needed_on_linux(marker: str, python: str) -> bool:
    """Return whether a lock's marker has Linux and a version of Python."""
    others = _PYTHON_BOUND.sub("", marker).replace(" and ", "").strip()
    return serves(marker, python) and (not others or "sys_platform == 'linux'" in marker)


def serves(marker: str, python: str) -> bool:
    """Return whether a marker's bounds on Python's version include ``python``."""
    version = _numbers(python)
    bounds = [(sign, _numbers(bound)) for sign, bound in _PYTHON_BOUND.findall(marker)]
    return all(version < bound if sign == "<" else version >= bound for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def wheel_sizes(lock: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by name of the packages a lock pins for Linux; 0 where unknown."""
    sizes_by_name: dict[str, int] = {}
    for name, version, marker in PIN.findall(lock):
        if not _FOREIGN.search(marker):
            sizes_by_name.setdefault(normalized(name), sizes.get(f"{name}=={version}", 0))
    return sizes_by_name


def read_sizes(path: Path) -> dict[str, int]:
    """Return the sizes of ``locks/sizes.json``; none if the file is missing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def normalized(name: str) -> str:
    """Normalize a name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()
