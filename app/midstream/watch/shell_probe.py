"""Probe of a host without Python: the output of ``probe.sh`` as its events.

The parsers of its sections are those of hosts with Python. Malformed text is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midstream_core.json_types import JsonObject, JsonValue, ReportLine
from midstream_host.machine import gauges, inventory, nvidia, rates, tpu

MIN_INTERVAL = 5.0  # seconds; every poll starts a dozen programs on the host
MAX_LINE_LENGTH = 4096  # characters
MAX_SECTION_LINES = 4096
POLL_SIZE_LIMIT = 1 << 20  # characters of one poll
SECTIONS = frozenset(
    (
        "name", "libc", "kernel", "cpus", "cuda", "users", "system", "cpuinfo", "disks", "infiniband", "synchronized",
        "stat", "memory", "disk", "gpus", "apps", "pids", "tpus", "net", "interfaces", "rdma", "diskstats", "blocks",
        "listing",
    )
)  # fmt: skip


def command(root: str, interval: float) -> list[str]:
    """Return the probe's command line."""
    from importlib import resources  # with zipfile and tempfile: a megabyte, for hosts without Python alone

    script = resources.files("midstream_host.machine").joinpath("probe.sh").read_text()
    seconds = str(round(max(MIN_INTERVAL, interval)))
    return ["sh", "-c", script, "sh", root, seconds, ",".join(nvidia.FIELDS), ""]


class ShellProbeParser:
    """Turns lines of text into events.

    ``devices``: number of virtual devices, if the fleet file has it. ``root``: midstream's directory on the host.
    ``visible``: entries of ``CUDA_VISIBLE_DEVICES`` of the fleet file, whose GPUs alone count; None: all.
    """

    def __init__(self, devices: int | None = None, root: str = "", visible: Sequence[str] | None = None) -> None:
        self._devices = devices
        self._visible = visible
        self._listing = ""  # of GPUs and their MIG devices
        self._root = root
        self._sections: dict[str, tuple[str, list[str]]] = {}
        self._section: list[str] | None = None
        self._size = 0  # characters of this poll
        self._began: float | None = None  # the host's clock at the beginning of the poll
        self._ticks: tuple[int, int] | None = None
        self._counted: tuple[float, rates.Counters] | None = None  # the host's clock, and its counters
        self._greeted = False
        self._cuda = ""
        self._users: list[dict[str, JsonValue]] = []

    def parse(self, data: bytes) -> Iterator[ReportLine]:
        """Parse one line, and yield its events."""
        line = data.decode(errors="replace").rstrip("\r\n")[:MAX_LINE_LENGTH]
        if line.startswith("|"):
            self._size += len(line)
            if self._section is not None and len(self._section) < MAX_SECTION_LINES and self._size <= POLL_SIZE_LIMIT:
                self._section.append(line[1:])
        elif line.startswith("@"):
            name, _, words = line[1:].partition(" ")
            if name == "clock":  # may appear anywhere
                number, _, clock = words.partition(" ")
                seconds = _seconds(clock)
                if seconds is not None and re.fullmatch(r"\d{1,9}", number, re.ASCII):
                    yield {"event": "clock", "ping": int(number), "time": seconds}
            elif name == "look":
                self._sections, self._section, self._began, self._size = {}, None, _seconds(words), 0
            elif name == "end":
                if self._began is not None:
                    yield from self._look(self._began)
                self._sections, self._section, self._began = {}, None, None
            elif name in SECTIONS:
                self._section = []
                self._sections[name] = (words, self._section)
            else:
                self._section = None

    def _text(self, name: str) -> str:
        return "\n".join(self._sections.get(name, ("", []))[1])

    def _look(self, began: float) -> Iterator[JsonObject]:
        if "name" in self._sections:
            if not self._greeted:
                self._greeted = True
                yield self._hello()
            yield self._inventory(began)
        if self._greeted:
            yield self._beat(began)

    def _hello(self) -> ReportLine:
        libc = inventory.parse_glibc(self._text("libc"))
        kernel = self._text("kernel").split()
        release = ".".join(kernel[1].split(".")[:2]) if len(kernel) > 1 else ""
        platform = f"{kernel[0]}-{release} {kernel[-1]} glibc{libc}" if len(kernel) > 2 else ""
        cpus = self._text("cpus").strip()
        return {
            "event": "hello",
            "hostname": self._text("name").strip()[:255],
            "platform": platform[:255],
            "python": "",
            "cpus": int(cpus) if re.fullmatch(r"\d{1,6}", cpus, re.ASCII) else 0,
        }

    def _inventory(self, began: float) -> ReportLine:
        rows = self._gpu_rows()
        self._cuda = nvidia.parse_cuda(self._text("cuda")) or self._cuda
        if "users" in self._sections:
            memory = nvidia.parse_apps(self._text("apps")).memory
            users = inventory.parse_processes(self._text("users"), began, memory, self._root)
            ours = {pid for accelerator in self._accelerators() for pid in accelerator["pids"]}
            self._users = [user for user in users if self._visible is None or user["pid"] in ours]
        kernel = self._text("kernel").split()
        return {
            "event": "inventory",
            "system": inventory.parse_os_release(self._text("system")),
            "kernel": kernel[1][:80] if len(kernel) > 1 else "",
            "glibc": inventory.parse_glibc(self._text("libc")),
            "cpu_model": inventory.parse_cpu_model(self._text("cpuinfo")),
            "disks": inventory.parse_df(self._text("disks")),
            "infiniband": inventory.parse_infiniband(self._text("infiniband")),
            "clock_synchronized": inventory.parse_clock(self._text("synchronized")),
            "driver": nvidia.driver_of(rows),
            "cuda": self._cuda,
            "users": self._users,
        }

    def _beat(self, began: float) -> JsonObject:
        ticks, before = gauges.parse_ticks(self._text("stat")), self._ticks
        self._ticks = ticks
        memory = gauges.parse_memory(self._text("memory"))
        disks = inventory.parse_df(self._text("disk"))
        return {
            "event": "beat",
            "time": began,
            "cpu_used": gauges.busy(before, ticks) if before and ticks else 0.0,
            "accelerators": self._accelerators(),
            **memory,
            "disk_total": disks[0]["total"] if disks else 0,
            "disk_free": disks[0]["free"] if disks else 0,
            **self._rates(began),
        }

    def _rates(self, began: float) -> Mapping[str, int | None]:
        """Return the rates since the poll before, by the host's clock.

        The clock may have been set.
        """
        counters = {
            **rates.parse_network(self._text("net"), self._text("interfaces").split()),
            **rates.parse_rdma(self._text("rdma")),
            **rates.parse_disks(self._text("diskstats"), self._text("blocks").split()),
        }
        at, before = self._counted or (began, {})
        self._counted = began, counters
        return rates.between(before, counters, began - at)

    def _gpu_rows(self) -> list[nvidia.Row]:
        fields, lines = self._sections.get("gpus", ("", []))
        return nvidia.parse_rows("\n".join(lines), [word for word in fields.split(",") if word])

    def _accelerators(self) -> list[dict[str, Any]]:
        if self._devices is not None:
            return [{"index": index, "kind": "cpu"} for index in range(self._devices)]
        if rows := self._gpu_rows():
            apps = nvidia.parse_apps(self._text("apps"))
            self._listing = self._text("listing") or self._listing
            return nvidia.visible_gpus(rows, apps, self._visible, self._listing).gpus
        pids = [int(line) for line in self._text("pids").split() if re.fullmatch(r"\d{1,10}", line, re.ASCII)]
        return tpu.devices(self._sections.get("tpus", ("", []))[0].split(), pids)


def _seconds(text: str) -> float | None:
    """Parse ``date +%s.%N``; seconds alone where ``%N`` is not supported."""
    matched = re.match(r"(\d{9,11})(\.\d{1,9})?", text.strip(), re.ASCII)
    return float(matched.group(0)) if matched else None
