"""Inventory of a machine: system, disks, network, users of its accelerators.

The parsers take any text and never raise: `watch.shell_probe` uses them for hosts without Python.
Sizes in bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import pwd
import re
import subprocess
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional

from midstream_core.json_types import JsonValue
from midstream_core.records import RUN_ID
from midstream_host.machine.kernel_files import list_names, read_text
from midstream_host.machine.nvidia import Apps
from midstream_host.shapes import Text

COMMAND_TIMEOUT = 10.0  # seconds
# Device, 1024-byte blocks, used, available, capacity, mount point. Both names may have spaces in them.
_DF = re.compile(r"(\S.*?)\s+(\d{1,18})\s+(\d{1,18})\s+(-?\d{1,18})\s+(?:\d{1,9}%|-)\s+(/.*)", re.ASCII)
# Process id, user, elapsed time, command line.
_PROCESS = re.compile(r"\s*(\d{1,10})\s+(\S+)\s+(?:((?:(?:\d{1,6}-)?\d{1,6}:)?\d{1,6}:\d\d)\s+)?(.*\S)\s*", re.ASCII)
_RUN_ID = re.compile(RUN_ID.pattern, re.ASCII)
MAX_WORDS, MAX_LENGTH = 4, 80  # of a command line that are shown

Entry = Dict[str, Any]  # of the inventory: a disk, a port or a process


@dataclasses.dataclass(frozen=True)
class Port:
    """A port of an RDMA device; ``layer`` is "InfiniBand" or "Ethernet" (RoCE)."""

    device: str
    port: int
    state: str
    gigabits: Optional[float]
    layer: str


@dataclasses.dataclass(frozen=True)
class AcceleratorProcess:
    """A process that has an accelerator open; ``user`` is empty where it is unknown.

    Attributes:
        pid: Its process id.
        user: The user that owns it.
        command: Beginning of its command line.
        started: UTC seconds by the host's clock; None where it is unknown.
        memory: Bytes on all accelerators; None where the driver does not report it.
        run: Id of the midstream run that it trains; empty for another program.
    """

    pid: int
    user: str
    command: Text
    started: Optional[float] = None
    memory: Optional[int] = None
    run: str = ""


def collect() -> Dict[str, JsonValue]:
    """The facts of this machine, apart from its accelerators."""
    return {
        "system": parse_os_release(read_text("/etc/os-release")),
        "kernel": platform.release(),
        "glibc": parse_glibc(" ".join(platform.libc_ver())),
        "cpu_model": parse_cpu_model(read_text("/proc/cpuinfo")),
        "disks": parse_df(_output(["df", "-Pk"])),
        "infiniband": infiniband(),
        "clock_synchronized": clock_synchronized(),
    }


def clock_synchronized() -> Optional[bool]:
    """Return whether the clock follows a time server.

    Return None where timedatectl does not report it.
    """
    return parse_clock(_output(["timedatectl", "show", "-p", "NTPSynchronized"]))


# --------------------------------------------------------------------------------------------------------- parsers


def parse_os_release(text: str) -> str:
    """``Ubuntu 22.04.4 LTS``, from os-release(5)."""
    match = re.search(r'^PRETTY_NAME=(["\']?)(.*?)\1\s*$', text, re.MULTILINE)
    return match.group(2)[:MAX_LENGTH] if match else ""


def parse_glibc(text: str) -> str:
    """Return the version of glibc, such as ``2.35``; empty for another libc.

    ``text``: the output of ``getconf GNU_LIBC_VERSION`` or ``ldd --version``.
    """
    if "musl" in text.lower():
        return ""
    match = re.search(r"(?:glibc|GLIBC|GNU libc).{0,40}?(\d{1,3}\.\d{1,4})", text, re.ASCII)
    return match.group(1) if match else ""


def parse_cpu_model(text: str) -> str:
    """Return the processor's name from /proc/cpuinfo; empty on Arm, which has numbers."""
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(match.group(1).split())[:MAX_LENGTH] if match else ""


def parse_df(text: str) -> List[Entry]:
    """File systems for data from ``df -Pk``, each device once."""
    disks: Dict[str, Dict[str, JsonValue]] = {}
    for line in text.split("\n"):
        match = _DF.fullmatch(line.rstrip())
        if match is None:
            continue
        device, total, _, free, mount = match.groups()
        is_disk = device.startswith("/") or ":" in device or mount == "/"
        if is_disk and int(total) > 0 and not mount.startswith(("/boot", "/snap/", "/etc/")) and device not in disks:
            disks[device] = {
                "mount": mount,
                "device": device,
                "total": int(total) * 1024,
                "free": max(0, int(free)) * 1024,
            }
    return list(disks.values())


def parse_infiniband(text: str) -> List[Entry]:
    """Parse lines ``DEVICE|PORT|STATE|RATE|LINK_LAYER``.

    A state is ``4: ACTIVE``, a rate ``200 Gb/sec (4X HDR)``.
    """
    ports: List[Entry] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or not re.fullmatch(r"\d{1,4}", cells[1], re.ASCII) or not cells[0]:
            continue
        rate = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", cells[3], re.ASCII)
        ports.append(
            {
                "device": cells[0],
                "port": int(cells[1]),
                "state": cells[2].rpartition(":")[2].strip().lower(),
                "gigabits": float(rate.group(1)) if rate else None,
                "layer": cells[4],
            }
        )
    return ports


def parse_clock(text: str) -> Optional[bool]:
    """Return whether the clock is synchronized, from the text of ``timedatectl``.

    Return None where it does not report it.
    """
    match = re.search(r"NTPSynchronized=(yes|no)\b|^(yes|no)$", text.strip(), re.ASCII)
    return None if match is None else "yes" in match.group(0)


def parse_processes(
    text: str, now: Optional[float] = None, memory: Optional[Mapping[int, int]] = None, root: str = ""
) -> List[Entry]:
    """Parse ``ps -o pid= -o user= -o etime= -o args=``.

    Args:
        text: The output.
        now: UTC seconds at which it was written.
        memory: Bytes on accelerators by pid.
        root: midstream's directory on the host.
    """
    rows: List[Entry] = []
    for line in text.split("\n"):
        match = _PROCESS.fullmatch(line)
        if match:
            pid, words = int(match.group(1)), match.group(4).split()
            elapsed = _elapsed(match.group(3))
            started = None if now is None or elapsed is None else float(round(now - elapsed))
            rows.append(_user_entry(pid, match.group(2), shown(words), started, memory, run_of(words, root)))
    return rows


def _elapsed(text: Optional[str]) -> Optional[int]:
    """Seconds of an elapsed time of ps: ``[[DAYS-]HOURS:]MINUTES:SECONDS``."""
    if text is None:
        return None
    days, _, clock = text.rpartition("-")
    seconds = 0
    for number in clock.split(":"):
        seconds = 60 * seconds + int(number)
    return int(days or 0) * 86400 + seconds


def _user_entry(
    pid: int, user: str, command: str, started: Optional[float], memory: Optional[Mapping[int, int]], run: str
) -> Dict[str, JsonValue]:
    """Return the fields of an `AcceleratorUser`."""
    used = (memory or {}).get(pid)
    return {"pid": pid, "user": user, "command": command, "started": started, "memory": used, "run": run}


def run_of(words: Iterable[str], root: str) -> str:
    """Id of the run whose files a command line names; empty for a program of others."""
    begin = os.path.join(root, "runs", "")
    for word in words:
        if root and word.startswith(begin):
            name = word[len(begin) :].partition("/")[0]
            if _RUN_ID.fullmatch(name):
                return name
    return ""


def shown(words: List[str]) -> str:
    """Return the beginning of a command line up to its first option or assignment.

    An option or assignment may be secret.
    """
    kept: List[str] = []
    for word in words:
        if len(kept) == MAX_WORDS or "=" in word or (kept and word.startswith("-") and word not in ("-m", "-u")):
            break
        kept.append(word if kept else os.path.basename(word))
    return " ".join(kept)[:MAX_LENGTH]


# ------------------------------------------------------------------------------------------------------ this machine


def infiniband(folder: str = "/sys/class/infiniband") -> List[Entry]:
    """The ports of RDMA devices; those of RoCE have the layer ``Ethernet``."""
    lines: List[str] = []
    for device in sorted(list_names(folder)):
        ports = os.path.join(folder, device, "ports")
        for port in sorted(list_names(ports)):
            words = [read_text(os.path.join(ports, port, name)).strip() for name in ("state", "rate", "link_layer")]
            lines.append("|".join([device, port, *words]))
    return parse_infiniband("\n".join(lines))


def processes(pids: Iterable[int], apps: Optional[Apps] = None, root: str = "", proc: str = "/proc") -> List[Entry]:
    """Describe processes that use accelerators.

    Args:
        pids: Their ids.
        apps: What the driver reports of them: it has the names of processes in other containers.
        root: midstream's directory on this host.
        proc: Where the kernel shows processes.
    """
    rows: List[Entry] = []
    for pid in sorted(set(pids)):
        words = [word for word in read_text(os.path.join(proc, str(pid), "cmdline")).split("\0") if word]
        command = shown(words) or shown((apps.names.get(pid) or "").split() if apps else [])
        try:
            uid = os.stat(os.path.join(proc, str(pid))).st_uid
        except OSError:
            user = ""
        else:
            user = _user(uid)
        started = _started(read_text(os.path.join(proc, str(pid), "stat")))
        rows.append(_user_entry(pid, user, command, started, apps.memory if apps else None, run_of(words, root)))
    return rows


def _started(stat: str) -> Optional[float]:
    """Return the start of a process, in UTC seconds, from /proc/PID/stat.

    The command in it may contain anything.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or not re.fullmatch(r"\d{1,19}", fields[19], re.ASCII):
        return None
    return float(_booted() + int(fields[19]) // os.sysconf("SC_CLK_TCK"))


@functools.lru_cache(maxsize=None)
def _booted() -> int:
    """Return the start of this machine, in UTC seconds.

    The time is computed once, because the clock is adjusted all the time.
    """
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _output(argv: List[str]) -> str:
    """Output of a program; empty where it is missing, fails or hangs."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=COMMAND_TIMEOUT, check=False, env=dict(os.environ, LC_ALL="C"))  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
