"""What a machine is made of, and who uses its accelerators: facts that change seldom.

The parsers are pure, take any text and never raise: the same ones read what a host without Python says about itself.
Sizes in bytes.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import subprocess
from typing import Any, Dict, Iterable, List, Mapping, Optional

PATIENCE = 10.0  # seconds for each of the host's own programs
# Device, 1024-byte blocks, used, available, capacity, mount point. Both names may have spaces in them.
_DF = re.compile(r"(\S.*?)\s+(\d{1,18})\s+(\d{1,18})\s+(-?\d{1,18})\s+(?:\d{1,9}%|-)\s+(/.*)", re.ASCII)
WORDS, LONGEST = 4, 80  # of a command line that are shown


def collect() -> Dict[str, Any]:
    """The facts of this machine, apart from its accelerators."""
    return {
        "system": parse_os_release(_text("/etc/os-release")),
        "kernel": platform.release(),
        "glibc": parse_glibc(" ".join(platform.libc_ver())),
        "cpu_model": parse_cpu_model(_text("/proc/cpuinfo")),
        "disks": parse_df(_output(["df", "-Pk"])),
        "infiniband": infiniband(),
        "clock_synchronized": parse_clock(_output(["timedatectl", "show", "-p", "NTPSynchronized"])),
    }


# --------------------------------------------------------------------------------------------------------- parsers


def parse_os_release(text: str) -> str:
    """``Ubuntu 22.04.4 LTS``, from os-release(5)."""
    found = re.search(r'^PRETTY_NAME=(["\']?)(.*?)\1\s*$', text, re.MULTILINE)
    return found.group(2)[:LONGEST] if found else ""


def parse_glibc(text: str) -> str:
    """``2.35``, from ``getconf GNU_LIBC_VERSION`` or the first line of ``ldd --version``; empty for another libc."""
    if "musl" in text.lower():
        return ""
    found = re.search(r"(?:glibc|GLIBC|GNU libc).{0,40}?(\d{1,3}\.\d{1,4})", text, re.ASCII)
    return found.group(1) if found else ""


def parse_cpu_model(text: str) -> str:
    """From /proc/cpuinfo. Arm has no name there, only numbers of who made it."""
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(found.group(1).split())[:LONGEST] if found else ""


def parse_df(text: str) -> List[Dict[str, Any]]:
    """``df -Pk``: file systems that something can be kept on, each device once."""
    found: Dict[str, Dict[str, Any]] = {}
    for line in text.split("\n"):
        match = _DF.fullmatch(line.rstrip())
        if match is None:
            continue
        device, total, _, free, mount = match.groups()
        kept = device.startswith("/") or ":" in device or mount == "/"
        if kept and int(total) > 0 and not mount.startswith(("/boot", "/snap/", "/etc/")) and device not in found:
            found[device] = {
                "mount": mount,
                "device": device,
                "total": int(total) * 1024,
                "free": max(0, int(free)) * 1024,
            }
    return list(found.values())


def parse_infiniband(text: str) -> List[Dict[str, Any]]:
    """Lines ``DEVICE|PORT|STATE|RATE|LINK_LAYER`` as the kernel words them: ``4: ACTIVE``, ``200 Gb/sec (4X HDR)``."""
    found = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or not re.fullmatch(r"\d{1,4}", cells[1], re.ASCII) or not cells[0]:
            continue
        rate = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", cells[3], re.ASCII)
        found.append(
            {
                "device": cells[0],
                "port": int(cells[1]),
                "state": cells[2].rpartition(":")[2].strip().lower(),
                "gigabits": float(rate.group(1)) if rate else None,
                "layer": cells[4],
            }
        )
    return found


def parse_clock(text: str) -> Optional[bool]:
    """``timedatectl``'s word on whether the clock follows a time server; None where it has none."""
    found = re.search(r"NTPSynchronized=(yes|no)\b|^(yes|no)$", text.strip(), re.ASCII)
    return None if found is None else "yes" in found.group(0)


def parse_processes(text: str) -> List[Dict[str, Any]]:
    """``ps -o pid= -o user= -o args=``."""
    found = []
    for line in text.split("\n"):
        match = re.fullmatch(r"\s*(\d{1,10})\s+(\S+)\s+(.*\S)\s*", line, re.ASCII)
        if match:
            found.append({"pid": int(match.group(1)), "user": match.group(2), "command": shown(match.group(3).split())})
    return found


def shown(words: List[str]) -> str:
    """The beginning of a command line, up to its first option or assignment: those are not for others' eyes."""
    kept: List[str] = []
    for word in words:
        if len(kept) == WORDS or "=" in word or (kept and word.startswith("-") and word not in ("-m", "-u")):
            break
        kept.append(word if kept else os.path.basename(word))
    return " ".join(kept)[:LONGEST]


# ------------------------------------------------------------------------------------------------------ this machine


def infiniband(folder: str = "/sys/class/infiniband") -> List[Dict[str, Any]]:
    """The ports of RDMA devices; RoCE's are told by their layer ``Ethernet``."""
    lines = []
    for device in sorted(_listdir(folder)):
        ports = os.path.join(folder, device, "ports")
        for port in sorted(_listdir(ports)):
            words = [_text(os.path.join(ports, port, name)).strip() for name in ("state", "rate", "link_layer")]
            lines.append("|".join([device, port, *words]))
    return parse_infiniband("\n".join(lines))


def processes(
    pids: Iterable[int], names: Optional[Mapping[int, str]] = None, proc: str = "/proc"
) -> List[Dict[str, Any]]:
    """Who these are. Of a process that cannot be seen (another container's, say) only what ``names`` calls it."""
    found = []
    for pid in sorted(set(pids)):
        words = [word for word in _text(os.path.join(proc, str(pid), "cmdline")).split("\0") if word]
        command = shown(words) or shown(((names or {}).get(pid) or "").split())
        try:
            uid = os.stat(os.path.join(proc, str(pid))).st_uid
        except OSError:
            user = ""
        else:
            user = _user(uid)
        found.append({"pid": pid, "user": user, "command": command})
    return found


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _output(argv: List[str]) -> str:
    """What a program prints; nothing where it is missing, refuses or hangs."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=PATIENCE, check=False, env=dict(os.environ, LC_ALL="C"))  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _listdir(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""
