"""GPUs through nvidia-smi: what it is asked, and what its answers mean.

Fields: ``nvidia-smi --help-query-gpu``. Sizes in bytes, utilization as a share of time (it is busy time, not the share
of peak that is used), temperature in degrees Celsius, power in watts. Parsers take any text and never raise.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

TIMEOUT = 20.0  # seconds; without persistence mode every call starts the driver anew
FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu",
    "temperature.gpu", "power.draw", "power.limit", "driver_version", "compute_cap",
)  # fmt: skip
NEEDED = ("index", "name")
APPS = ("gpu_uuid", "pid", "process_name")
MIB = 1 << 20

# The header of plain nvidia-smi; newer drivers tell the user-mode driver's version there.
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d{1,4}(?:\.\d{1,4}){1,2})", re.ASCII)
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(?: ?(?:MiB|%|W|C))?", re.ASCII)
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}", re.ASCII)

Row = Dict[str, str]


class Nvidia:
    """One unknown field fails a whole query: older drivers are asked for each field once, then for those they know."""

    def __init__(self, command: str = "nvidia-smi", timeout: float = TIMEOUT):
        self.present = True
        self.driver = ""
        self.cuda = ""
        self.apps: Dict[int, str] = {}  # pid -> what nvidia-smi calls it, as of the last look
        self._command = command
        self._timeout = timeout
        self._fields: Sequence[str] = ()
        self._greeting: Optional[str] = None

    def look(self) -> List[Dict[str, Any]]:
        """One entry a GPU, in nvidia-smi's order; empty where there are none."""
        if not self.present:
            return []
        self._fields = self._fields or self._known_fields()
        text = self._query("gpu", self._fields) if self._fields else None
        rows = parse_rows(text or "", self._fields)
        if not rows:
            return []
        self.driver = driver_of(rows)
        if self._greeting is None:
            self._greeting = self._output([]) or ""
            self.cuda = parse_cuda(self._greeting)
        holders, self.apps = parse_apps((self._query("compute-apps", APPS) or "") if "uuid" in self._fields else "")
        return [gpu(row, holders) for row in rows]

    def _known_fields(self) -> Sequence[str]:
        if self._query("gpu", FIELDS) is not None:
            return FIELDS
        known = [field for field in FIELDS if self.present and self._query("gpu", (field,)) is not None]
        return known if all(field in known for field in NEEDED) else ()

    def _query(self, what: str, fields: Sequence[str]) -> Optional[str]:
        return self._output(["--query-{}={}".format(what, ",".join(fields)), "--format=csv,noheader,nounits"])

    def _output(self, arguments: List[str]) -> Optional[str]:
        """What it prints, None where it refuses, hangs or is missing."""
        try:
            done = subprocess.run([self._command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  timeout=self._timeout, stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            self.present = False
            return None
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode else done.stdout.decode(errors="replace")


def parse_rows(text: str, fields: Sequence[str]) -> List[Row]:
    """Rows of ``--query-gpu``. What has another shape is no GPU: a warning between the rows, or a row cut off."""
    rows = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if fields and len(cells) == len(fields):
            row = dict(zip(fields, cells))
            if re.fullmatch(r"\d{1,4}", row.get("index", ""), re.ASCII) and row.get("name"):
                rows.append(row)
    return rows


def gpu(row: Row, holders: Dict[str, List[int]]) -> Dict[str, Any]:
    """nvidia-smi spells what it does not know ``[N/A]``, ``[Not Supported]`` or ``[Unknown Error]``."""
    total, used, busy = (number(row.get(name)) for name in ("memory.total", "memory.used", "utilization.gpu"))
    return {
        "index": int(row["index"]),
        "kind": row["name"],
        "memory_total": None if total is None else int(total * MIB),
        "memory_used": None if used is None else int(used * MIB),
        "utilization": None if busy is None else min(1.0, busy / 100),
        "holders": sorted(holders.get(row.get("uuid", ""), [])),
        "temperature": number(row.get("temperature.gpu")),
        "power": number(row.get("power.draw")),
        "power_limit": number(row.get("power.limit")),
        "capability": version(row.get("compute_cap")),
    }


def parse_apps(text: str) -> Tuple[Dict[str, List[int]], Dict[int, str]]:
    """Rows of ``--query-compute-apps``: uuid -> pids, and pid -> the program's name."""
    holders: Dict[str, List[int]] = {}
    names: Dict[int, str] = {}
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(",", 2)]
        if len(cells) >= 2 and re.fullmatch(r"\d{1,10}", cells[1], re.ASCII):
            pid = int(cells[1])
            holders.setdefault(cells[0], []).append(pid)
            names[pid] = cells[2] if len(cells) > 2 and not cells[2].startswith("[") else ""
    return holders, names


def driver_of(rows: Iterable[Row]) -> str:
    return next((found for row in rows if (found := version(row.get("driver_version")))), "")


def parse_cuda(text: str) -> str:
    """The newest CUDA that the driver runs, from the header of plain ``nvidia-smi``."""
    found = _CUDA.search(text)
    return found.group(1) if found else ""


def number(text: Optional[str]) -> Optional[float]:
    """``"37"``; where ``nounits`` is not heeded, ``"37 %"``, ``"16160 MiB"`` and ``"71.20 W"``."""
    match = _NUMBER.fullmatch(text or "")
    return float(match.group(1)) if match else None


def version(text: Optional[str]) -> str:
    match = _VERSION.fullmatch(text or "")
    return match.group(0) if match else ""
