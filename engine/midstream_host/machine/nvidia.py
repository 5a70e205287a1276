"""GPUs through nvidia-smi: its queries and the parsers of its output.

Fields: ``nvidia-smi --help-query-gpu``. Sizes in bytes, utilization as a share of time (it is busy time, not the share
of peak that is used), temperature in degrees Celsius, power in watts. Parsers take any text and never raise.
"""

from __future__ import annotations

import re
import subprocess
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from midstream_core.json_types import int_of, list_or_empty
from midstream_core.visible_devices import Gpu, select_visible

TIMEOUT = 20.0  # seconds; without persistence mode every call starts the driver
FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu",
    "temperature.gpu", "power.draw", "power.limit", "driver_version", "compute_cap",
)  # fmt: skip
NEEDED = ("index", "name")
APPS = ("gpu_uuid", "pid", "used_memory", "process_name")  # a name may contain commas
MIB = 1 << 20

# The header of plain nvidia-smi; newer drivers print the version of the user-mode driver.
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d{1,4}(?:\.\d{1,4}){1,2})", re.ASCII)
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(?: ?(?:MiB|%|W|C))?", re.ASCII)
# Of ``nvidia-smi -L``: a GPU, and its MIG devices below it.
_LISTED = re.compile(r"GPU (\d{1,4}): .{1,200} \(UUID: (GPU-[\w-]{1,60})\)", re.ASCII)
_PART = re.compile(r"\s+MIG (\S{1,40})\s+Device\s+\d{1,4}: \(UUID: (MIG-[\w/-]{1,90})\)", re.ASCII)
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}", re.ASCII)

Row = Dict[str, str]


class Apps(NamedTuple):
    """The processes that use GPUs.

    uuid -> pids, pid -> name of its program, pid -> bytes on all GPUs, if known.
    """

    pids: Dict[str, List[int]]
    names: Dict[int, str]
    memory: Dict[int, int]


class Nvidia:
    """Queries of nvidia-smi.

    Unknown fields fail a query: older drivers are probed for each field once.

    Args:
        command: The program.
        timeout: Seconds for an answer.
        visible: Entries of ``CUDA_VISIBLE_DEVICES``: `look` has these GPUs alone; None: all.
    """

    def __init__(
        self, command: str = "nvidia-smi", timeout: float = TIMEOUT, visible: Optional[Sequence[str]] = None
    ) -> None:
        self.present = True
        self.missing: List[str] = []  # entries that do not count: one of them, the first, is no device of this machine
        self.unattributed: List[int] = []  # processes on a GPU of which a MIG device is visible; which one is not known
        self._visible = visible
        self.driver = ""
        self.cuda = ""
        self.apps = Apps({}, {}, {})  # as of the last poll
        self._command = command
        self._timeout = timeout
        self._fields: Sequence[str] = ()
        self._greeting: Optional[str] = None

    def look(self) -> List[Gpu]:
        """One entry a visible GPU; empty where there are none.

        The entries are in the order of ``visible``, else in nvidia-smi's.
        """
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
        self.apps = parse_apps((self._query("compute-apps", APPS) or "") if "uuid" in self._fields else "")
        has_parts = any(entry.startswith("MIG-") for entry in self._visible or ())
        gpus = visible_gpus(rows, self.apps, self._visible, (self._output(["-L"]) or "") if has_parts else "")
        self.missing, self.unattributed = gpus.missing, gpus.unattributed
        return gpus.gpus

    def _known_fields(self) -> Sequence[str]:
        if self._query("gpu", FIELDS) is not None:
            return FIELDS
        fields = [field for field in FIELDS if self.present and self._query("gpu", (field,)) is not None]
        return fields if all(field in fields for field in NEEDED) else ()

    def _query(self, what: str, fields: Sequence[str]) -> Optional[str]:
        return self._output(["--query-{}={}".format(what, ",".join(fields)), "--format=csv,noheader,nounits"])

    def _output(self, arguments: List[str]) -> Optional[str]:
        """Output of nvidia-smi; None where it fails, hangs or is missing."""
        try:
            done = subprocess.run([self._command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  timeout=self._timeout, stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            self.present = False
            return None
        except (OSError, subprocess.TimeoutExpired):  # as where there is no memory for a process
            return None
        return None if done.returncode else done.stdout.decode(errors="replace")


def parse_rows(text: str, fields: Sequence[str]) -> List[Row]:
    """Parse rows of ``--query-gpu``.

    Lines of another shape are left out: warnings, partial rows.
    """
    rows: List[Row] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if fields and len(cells) == len(fields):
            row = dict(zip(fields, cells))
            if re.fullmatch(r"\d{1,4}", row.get("index", ""), re.ASCII) and row.get("name"):
                rows.append(row)
    return rows


class VisibleGpus(NamedTuple):
    """Visible GPUs; the other fields are those of `Nvidia`."""

    gpus: List[Gpu]
    missing: List[str]
    unattributed: List[int]


def visible_gpus(rows: Sequence[Row], apps: Apps, visible: Optional[Sequence[str]], listing: str = "") -> VisibleGpus:
    """Return the GPUs of ``rows`` that are visible, and their processes.

    Args:
        rows: Of `parse_rows`.
        apps: Their processes.
        visible: Entries of ``CUDA_VISIBLE_DEVICES``; None: all.
        listing: Output of ``nvidia-smi -L``, if an entry is a MIG device.
    """
    parts = parse_parts(listing)
    gpus: List[Gpu] = []
    for row in rows:
        row_of_gpu = {**gpu(row, apps.pids), "uuid": row.get("uuid", "")}
        gpus.append(
            {
                **row_of_gpu,
                "parts": [_part(row_of_gpu, *named, apps.pids) for named in parts.get(int(row["index"]), [])],
            }
        )
    chosen = select_visible(gpus, visible)
    unattributed = {int_of(pid) for device in chosen for pid in list_or_empty(device.pop("of_all_parts", []))}
    return VisibleGpus(
        [{key: value for key, value in device.items() if key not in ("uuid", "parts")} for device in chosen],
        list(visible or ())[len(chosen) :],
        sorted(unattributed),
    )


def _part(parent: Gpu, profile: str, uuid: str, pids: Dict[str, List[int]]) -> Gpu:
    """Return a MIG device of a GPU.

    Memory, temperature and power of the device are not measured apart.
    """
    unknown = dict.fromkeys(("memory_total", "memory_used", "utilization", "temperature", "power", "power_limit"))
    name, own = "{} MIG {}".format(parent["kind"], profile), sorted(pids.get(uuid, []))
    return {**parent, **unknown, "kind": name, "uuid": uuid, "pids": own, "of_all_parts": parent["pids"]}


def parse_parts(text: str) -> Dict[int, List[Tuple[str, str]]]:
    """Parse ``nvidia-smi -L``.

    Returns index of a GPU -> profile and UUID of each of its MIG devices.
    """
    slices: Dict[int, List[Tuple[str, str]]] = {}
    index = -1
    for line in text.split("\n"):
        listed, device = _LISTED.fullmatch(line.rstrip()), _PART.fullmatch(line.rstrip())
        if listed:
            index = int(listed.group(1))
        elif device and index >= 0:
            slices.setdefault(index, []).append((device.group(1), device.group(2)))
    return slices


def gpu(row: Row, pids: Dict[str, List[int]]) -> Gpu:
    """Return a GPU from its row.

    Values may be ``[N/A]``, ``[Not Supported]`` or ``[Unknown Error]``.
    """
    total, used, busy = (number(row.get(name)) for name in ("memory.total", "memory.used", "utilization.gpu"))
    return {
        "index": int(row["index"]),
        "kind": row["name"],
        "memory_total": None if total is None else int(total * MIB),
        "memory_used": None if used is None else int(used * MIB),
        "utilization": None if busy is None else min(1.0, busy / 100),
        "pids": sorted(pids.get(row.get("uuid", ""), [])),
        "temperature": number(row.get("temperature.gpu")),
        "power": number(row.get("power.draw")),
        "power_limit": number(row.get("power.limit")),
        "capability": version(row.get("compute_cap")),
    }


def parse_apps(text: str) -> Apps:
    """Parse rows of ``--query-compute-apps`` with the fields `APPS`.

    A process has a row for each GPU that it uses.
    """
    apps = Apps({}, {}, {})
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) < 2 or not re.fullmatch(r"\d{1,10}", cells[1], re.ASCII):
            continue
        pid = int(cells[1])
        apps.pids.setdefault(cells[0], []).append(pid)
        apps.names[pid] = cells[3] if len(cells) > 3 and not cells[3].startswith("[") else ""
        used = number(cells[2]) if len(cells) > 2 else None
        if used is not None:
            apps.memory[pid] = apps.memory.get(pid, 0) + int(used * MIB)
    return apps


def driver_of(rows: Iterable[Row]) -> str:
    """Version of the driver; empty where no row has one."""
    return next((version_text for row in rows if (version_text := version(row.get("driver_version")))), "")


def parse_cuda(text: str) -> str:
    """Newest CUDA that the driver supports, from the header of plain ``nvidia-smi``."""
    match = _CUDA.search(text)
    return match.group(1) if match else ""


def number(text: Optional[str]) -> Optional[float]:
    """Return the number in a field such as ``"37"``.

    Some versions ignore ``nounits``: ``"37 %"``, ``"16160 MiB"`` and ``"71.20 W"``.
    """
    match = _NUMBER.fullmatch(text or "")
    return float(match.group(1)) if match else None


def version(text: Optional[str]) -> str:
    match = _VERSION.fullmatch(text or "")
    return match.group(0) if match else ""
