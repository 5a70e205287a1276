"""Rates of network, RDMA ports and disks in bytes a second, from kernel counters.

The parsers take any text and never raise: `watch.shell_probe` uses them for hosts without Python.
"""

from __future__ import annotations

import os
import re
import time
from typing import Collection, Dict, List, Optional

from midstream_host.machine.kernel_files import list_names, read_text

SECTOR = 512  # bytes, in /proc/diskstats whatever the disk's own sectors are
RDMA_WORD = 4  # bytes, of port_rcv_data and port_xmit_data
MAX_DEVICES = 4096  # of which counters are read
NAMES = ("network_received", "network_sent", "rdma_received", "rdma_sent", "disk_read", "disk_written")

Counters = Dict[str, Dict[str, int]]  # name of a rate -> device -> bytes since boot

_COUNT = re.compile(r"\d{1,20}", re.ASCII)
# Devices that are stored on other ones, or in memory: their bytes would count twice, or are no disk's.
_NO_DISK = re.compile(r"(?:loop|ram|zram|dm-|md|sr|fd)\d*", re.ASCII)


class CounterRates:
    """Rates between two readings of the counters."""

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc, self._sys = proc, sys
        self._at = time.monotonic()
        self._before = self._counters()

    def read(self) -> Dict[str, Optional[int]]:
        """Return the rates since the last reading; None where the host has no such device."""
        now, counters = time.monotonic(), self._counters()
        rates = between(self._before, counters, now - self._at)
        self._at, self._before = now, counters
        return rates

    def _counters(self) -> Counters:
        net, block = os.path.join(self._sys, "class/net"), os.path.join(self._sys, "block")
        physical = [name for name in list_names(net) if os.path.exists(os.path.join(net, name, "device"))]
        return {
            **parse_network(read_text(os.path.join(self._proc, "net/dev")), physical),
            **parse_rdma(self._rdma()),
            **parse_disks(read_text(os.path.join(self._proc, "diskstats")), list_names(block)),
        }

    def _rdma(self) -> str:
        lines: List[str] = []
        devices = os.path.join(self._sys, "class/infiniband")
        for device in sorted(list_names(devices)):
            for port in sorted(list_names(os.path.join(devices, device, "ports"))):
                counters = os.path.join(devices, device, "ports", port, "counters")
                received, sent = (
                    read_text(os.path.join(counters, name)) for name in ("port_rcv_data", "port_xmit_data")
                )
                lines.append("{}:{} {} {}".format(device, port, received.strip(), sent.strip()))
        return "\n".join(lines)


def between(before: Counters, now: Counters, seconds: float) -> Dict[str, Optional[int]]:
    """Return the rates between two readings, for the devices that both have.

    A counter that has become smaller was reset: its device is left out.
    """
    rates: Dict[str, Optional[int]] = dict.fromkeys(NAMES)
    for name in NAMES:
        earlier = before.get(name, {})
        grown = [
            count - earlier[device]
            for device, count in now.get(name, {}).items()
            if earlier.get(device, count + 1) <= count
        ]
        if grown and seconds > 0:
            rates[name] = int(sum(grown) / seconds)
    return rates


def parse_network(text: str, physical: Collection[str]) -> Counters:
    """Parse /proc/net/dev and count the ``physical`` interfaces.

    Without any (in a container), count all but the loopback.

    Bridges, bonds and tunnels count bytes that a physical interface counts too.
    """
    received: Dict[str, int] = {}
    sent: Dict[str, int] = {}
    for line in text.split("\n")[: MAX_DEVICES + 2]:
        name, colon, rest = line.partition(":")
        cells = rest.split()
        if colon and len(cells) >= 9 and _COUNT.fullmatch(cells[0]) and _COUNT.fullmatch(cells[8]):
            received[name.strip()], sent[name.strip()] = int(cells[0]), int(cells[8])
    counted = set(physical) & set(received) or set(received) - {"lo"}
    return {
        "network_received": {name: received[name] for name in counted},
        "network_sent": {name: sent[name] for name in counted},
    }


def parse_rdma(text: str) -> Counters:
    """Parse lines ``DEVICE:PORT RECEIVED SENT``.

    Network interfaces do not count these bytes.
    """
    received: Dict[str, int] = {}
    sent: Dict[str, int] = {}
    for line in text.split("\n")[:MAX_DEVICES]:
        cells = line.split()
        if len(cells) == 3 and _COUNT.fullmatch(cells[1]) and _COUNT.fullmatch(cells[2]):
            received[cells[0]], sent[cells[0]] = int(cells[1]) * RDMA_WORD, int(cells[2]) * RDMA_WORD
    return {"rdma_received": received, "rdma_sent": sent}


def parse_disks(text: str, blocks: Collection[str]) -> Counters:
    """Parse /proc/diskstats.

    ``blocks``: the names in /sys/block, which has no partitions.
    """
    read: Dict[str, int] = {}
    written: Dict[str, int] = {}
    complete = set(blocks)
    for line in text.split("\n")[:MAX_DEVICES]:
        cells = line.split()
        if len(cells) < 10 or cells[2] not in complete or _NO_DISK.fullmatch(cells[2]):
            continue
        if _COUNT.fullmatch(cells[5]) and _COUNT.fullmatch(cells[9]):
            read[cells[2]], written[cells[2]] = int(cells[5]) * SECTOR, int(cells[9]) * SECTOR
    return {"disk_read": read, "disk_written": written}
