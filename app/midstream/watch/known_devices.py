"""Accelerators of hosts as last seen, for those that do not answer now.

File: `$MIDSTREAM_STATE/devices.json`, a cache: it may be deleted, and a damaged file counts as empty.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import RemoteError
from midstream.hosts.rpc.result_checks import printed_value
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.watch.snapshot import Snapshot

HOSTS = 4096  # that are kept, the last seen ones
DEVICES = 256  # of a host
_LARGEST = 16 << 20  # bytes of a file that is read


@dataclass(frozen=True)
class KnownDevices:
    """The accelerators of a host when it was last seen."""

    kinds: list[str]
    time: float  # UTC seconds


@dataclass(frozen=True)
class _Hosts:
    """The file: fleet file and host, with a newline between -> devices."""

    hosts: dict[str, KnownDevices] = field(default_factory=dict)


def devices_file() -> Path:
    """Return the path of the file."""
    return state_directory() / "devices.json"


def known_devices(fleet: Fleet, host: str) -> KnownDevices | None:
    """Return the accelerators of a host as last seen; None if it never was."""
    return _read().hosts.get(_key(fleet, host))


def remember_devices(fleet: Fleet, snapshot: Snapshot) -> None:
    """Write the accelerators of the hosts that answered.

    A failure is ignored: without the file nothing is said of hosts that do not answer.
    """
    seen = {
        _key(fleet, host.name): [device.kind for device in host.machine.accelerators[:DEVICES]]
        for host in snapshot.hosts
        if host.link == "live" and host.machine is not None and host.machine.accelerators
    }
    if not fleet.path or not seen:
        return
    with suppress(OSError):
        hosts = dict(_read().hosts)
        for key, kinds in seen.items():
            hosts.pop(key, None)
            hosts[key] = KnownDevices(kinds, time.time())
        path = devices_file()
        make_directory(path.parent)
        text = json.dumps(asdict(_Hosts(dict(list(hosts.items())[-HOSTS:]))))
        records.write_bytes(str(path), text.encode())


def _key(fleet: Fleet, host: str) -> str:
    return f"{os.path.abspath(os.path.expanduser(fleet.path))}\n{host}"


def _read() -> _Hosts:
    try:
        with devices_file().open(encoding="utf-8", errors="replace") as file:
            return printed_value("this machine", "devices.json", _Hosts, file.read(_LARGEST))
    except (OSError, RemoteError):
        return _Hosts()
