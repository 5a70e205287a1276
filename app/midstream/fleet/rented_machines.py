"""Machines that SkyPilot and dstack rented, from their SSH configurations.

SkyPilot writes ``~/.sky/generated/ssh/CLUSTER`` (before 0.5.0: ``~/.sky/ssh/CLUSTER``) with the hosts CLUSTER,
CLUSTER-worker1, ...; dstack writes ``~/.dstack/ssh/config`` with the host RUN, and RUN-host and RUN-jump-host for the
machines in between. Both switch the check of host keys off. midstream does not: it keeps the keys of these machines in
files of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.fleet_yaml import load_yaml
from midstream.fleet.rented_files import DSTACK_FILE, rented_known_hosts, skypilot_directories
from midstream.fleet.ssh_config_reader import hosts_in

SKYPILOT, DSTACK = "SkyPilot", "dstack"
MAX_FILE = 1 << 20  # bytes
MAX_CLUSTERS = 1000
_WORKER = re.compile(r"(.+)-worker(\d{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True)
class RentedMachines:
    """A cluster of rented machines.

    ``by`` names the program that rented it, ``file`` its SSH configuration.
    """

    name: str
    by: str
    file: Path
    hosts: tuple[str, ...]


def rented_machines() -> dict[str, RentedMachines]:
    """Return all clusters by name.

    An unreadable cluster is left out; of two with the same name, SkyPilot's stays, and its present file's.
    """
    clusters: dict[str, RentedMachines] = {}
    files = [file for directory in skypilot_directories() if directory.is_dir() for file in sorted(directory.iterdir())]
    for file in files[:MAX_CLUSTERS]:
        names = _names_in(file)
        if file.name in names and file.name not in clusters:
            workers = sorted(
                (int(match[2]), match[0]) for match in map(_WORKER.fullmatch, names) if match and match[1] == file.name
            )
            hosts = (file.name, *(name for _, name in workers))
            clusters[file.name] = RentedMachines(file.name, SKYPILOT, file, hosts)
    file = Path(DSTACK_FILE).expanduser()
    names = _names_in(file)
    between = {f"{name}{suffix}" for name in names for suffix in ("-host", "-jump-host")}
    for name in names:
        if name not in between:
            clusters.setdefault(name, RentedMachines(name, DSTACK, file, (name,)))
    return clusters


def _names_in(file: Path) -> list[str]:
    """Return the hosts of an SSH configuration; none if it cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > MAX_FILE:
            return []
        return [entry.name for entry in hosts_in(file, file.parent) if _NAME.fullmatch(entry.name)]
    except (OSError, UsageError):
        return []


def with_rented(fleet: Fleet, names: Collection[str]) -> Fleet:
    """Return the fleet, extended by the clusters of these names that it lacks.

    The fleet's text, which migrations copy, has them too.
    """
    missing = [name for name in names if name and name not in fleet.target_names]
    rented = rented_machines() if missing else {}
    clusters = [rented[name] for name in missing if name in rented]
    if not clusters:
        return fleet
    value = load_yaml(fleet.text) or {}
    hosts, targets = value.setdefault("hosts", {}) or {}, value.setdefault("targets", {}) or {}
    value.update(hosts=hosts, targets=targets)
    for cluster in clusters:
        for host in cluster.hosts:
            hosts.setdefault(host, entry_of(cluster, host))
        if len(cluster.hosts) > 1:
            # Its first machine has the cluster's name, which a target may not share with a host that it differs from.
            hosts[f"{cluster.name}-worker0"] = hosts.pop(cluster.name)
            targets[cluster.name] = {"type": "hosts", "hosts": [f"{cluster.name}-worker0", *cluster.hosts[1:]]}
    wider = parse_fleet(yaml.safe_dump(value, sort_keys=False), fleet.path)
    return dataclasses.replace(wider, unavailable=fleet.unavailable)


def entry_of(cluster: RentedMachines, host: str) -> dict[str, Any]:
    """Return the entry of a machine in the fleet file."""
    known_hosts = rented_known_hosts(cluster.file, host)
    assert known_hosts is not None
    return {"type": "ssh", "address": host, "ssh_config": str(cluster.file), "known_hosts": str(known_hosts)}
