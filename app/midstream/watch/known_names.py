"""Names of the runs and checkpoints that were seen last, for shell completion.

File: `$MIDSTREAM_STATE/names.json`, a cache: it may be deleted, and a damaged file counts as empty.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream.state_directory import state_directory
from midstream.watch.fleet_cache import fleet_key, read_entries, write_entry
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.watch.snapshot import RunView, Snapshot

CHECKPOINTS = 20  # of a run, the newest ones
DETAILED_SIZE, NAMES_SIZE = 1 << 19, 1 << 20  # characters of runs with their checkpoints, and of further names
EARLIER_SIZE = 1 << 20  # characters of names that an earlier session saw, of hosts that do not answer now
OVERHEAD = 12  # characters of a name in the file, besides its own


def names_file() -> Path:
    """Return the path of the file."""
    return state_directory() / "names.json"


def read_names(fleet_path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the names of a fleet file; empty if nothing was seen.

    The result is host -> run -> ``{"steps": [...], "checkpoints": [...]}``.
    """
    hosts = read_entries(names_file()).get(fleet_key(fleet_path), {})
    return hosts if isinstance(hosts, dict) else {}


def remember_names(fleet: Fleet, snapshot: Snapshot) -> None:
    """Write the names of a snapshot.

    Hosts that did not answer keep those that they had, as far as there is room.

    A failure is ignored: completion is a convenience.
    """
    if not fleet.path or not os.path.exists(fleet.path):
        return
    with suppress(OSError):
        entry = read_entries(names_file()).get(fleet_key(fleet.path), {})
        hosts, room = _of_live_hosts(fleet, snapshot), EARLIER_SIZE
        for host in snapshot.hosts:
            if host.name not in hosts and isinstance(entry, dict) and host.name in entry:
                room -= len(json.dumps(entry[host.name], indent=1))
                if room >= 0:
                    hosts[host.name] = entry[host.name]
        if hosts != entry:
            write_entry(names_file(), fleet.path, hosts)


def _of_live_hosts(fleet: Fleet, snapshot: Snapshot) -> dict[str, dict[str, JsonValue]]:
    """Return host -> run -> its checkpoints, of the hosts that answered.

    With thousands of runs some have no checkpoints, and then some are left out, running ones last: a file that is too
    large is not read.
    """
    hosts: dict[str, dict[str, JsonValue]] = {host.name: {} for host in snapshot.hosts if host.link == "live"}
    runs = [run for host in hosts for run in snapshot.runs_on(host)]
    detailed, names = DETAILED_SIZE, NAMES_SIZE
    for run in sorted(runs, key=lambda run: not run.running):
        if detailed > 0:
            names_of_run = _checkpoints(fleet, run)
            detailed -= len(json.dumps({run.run_id: names_of_run}, indent=1))
        elif names > 0:
            names_of_run = {}
            names -= len(run.run_id) + OVERHEAD
        else:
            break
        hosts[run.host][run.run_id] = names_of_run
    return hosts


def _checkpoints(fleet: Fleet, run: RunView) -> dict[str, JsonValue]:
    """Return a run's complete checkpoints.

    The result has their steps, and each as the argument CHECKPOINT.
    """
    from midstream_core import records

    config = fleet.hosts.get(run.host)
    paths = records.RunPaths(config.root if config else "", run.run_id, run.store)
    newest = sorted(run.usable, key=lambda checkpoint: checkpoint.order, reverse=True)[:CHECKPOINTS]
    prefix = "" if run.store else f"{run.host}:"
    return {
        "steps": [checkpoint.step for checkpoint in newest],
        "checkpoints": [prefix + paths.checkpoint(checkpoint.name) for checkpoint in newest] if config else [],
    }
