"""Connect midstream with the simulated machines: the few places where it starts processes and reaches hosts."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.check import target_checks
from midstream.hosts import host_pool
from midstream.install import bundle
from midstream.launch import host_links, input_check
from midstream.migrate import migration_process
from midstream.migrate.journal import journal
from midstream.transfer import copy_tree, send_files
from midstream.watch import watcher
from midstream_core import records
from midstream_core.attempt import status_file
from midstream_core.object_store import open_bucket
from midstream_host.machine import environments, inventory
from midstream_host.runs import process_start, record_repair, slurm
from simulation import buckets, clusters, copies, engine, groups, hardware, links, operating_system, pace, unseen
from simulation.machines import SimulatedProcess, present
from simulation.operating_system import replace_everywhere
from simulation.scheduler import SCHEDULER
from simulation.world import RUN, WORLDS, append, identity_of, start_engine

WATCH_INTERVAL = 5.0  # seconds between two polls of a host


def _spawn_attempt(
    argv: Sequence[str],
    env: Mapping[str, str],
    directory: str,
    log: str,
    launched: str,
    note: Mapping[str, Any] | None = None,
) -> records.ProcessIdentity:
    """Start a detached process, as `process_start.spawn` does."""
    caller = present()
    assert caller is not None
    own = {key: value for key, value in env.items() if key.startswith(("MIDSTREAM_", "RUN_ID"))}
    directory = os.path.dirname(launched)
    process = start_engine(caller.machine, own, directory, log, groups.position(argv), groups.size(argv))
    identity = identity_of(process)
    records.write_json(launched, {**identity.to_json(), "argv": list(argv), **(note or {})})
    return identity


def _spawn_migration(directory: Any, *flags: str) -> None:
    """Start the process of a migration, and wait until it has locked the migration."""
    caller = present()
    assert caller is not None
    environment = dict(caller.environment)
    append(directory.log_file, b"")
    process = SimulatedProcess(
        caller.machine, lambda: migration_process.main([directory.migration, *flags]),
        f"migration {directory.migration}", environment, lambda data: append(directory.log_file, data),
    )  # fmt: skip
    process.stderr._write = lambda data: append(directory.log_file, data)
    begun = directory.journal_size()
    while not (directory.is_locked() or directory.journal_size() > begun):
        if process.exit_code is not None:
            raise migration_process.MidstreamError(f"the migration's process exited: {process.errors.decode()[-400:]}")
        SCHEDULER.park(0.02)


def _open_host(name: str, entry: Any) -> links.SimulatedHost:
    return links.SimulatedHost(name, entry, WORLDS[-1].network)


def _try_links(listener: host_links.LinkListener, others: Sequence[links.SimulatedHost]) -> list[host_links.HostLink]:
    """Connect from hosts to a listener: each reaches it that answers."""
    for other in others:
        other.connect()
    return [host_links.HostLink(other.name, listener.host, listener.addresses[0], 0.001) for other in others]


def _engines() -> list[tuple[int, list[str]]]:
    """Return the engines of the caller's machine, as ``/proc`` has them."""
    caller = present()
    assert caller is not None
    found = caller.machine.processes.values()
    return [(process.pid, ["midstream_engine.train", RUN]) for process in found if process.name.startswith("engine")]


def _clock_skew(host: links.SimulatedHost) -> float:
    """Return the seconds that a host's clock is ahead of the caller's, after a call of it."""
    host.connect()
    caller = present()
    assert caller is not None
    return host._machine.clock.wall() - caller.machine.clock.wall()


_write_line = journal.Journal.write


def _counted_line(self: journal.Journal, event: str, **fields: Any) -> Any:
    """Write a line of a journal, with the faults that strike at it."""
    world = WORLDS[-1]
    number, world.journal_lines = world.journal_lines, world.journal_lines + 1
    world.at_line(number, False)
    written = _write_line(self, event, **fields)
    if event == "result" and fields.get("outcome") == "completed":
        world.note_completed(fields["migration"], self.path.parent)
    world.at_line(number, True)
    return written


def _read_config(*_: object) -> subprocess.CompletedProcess[str]:
    """Answer as the engine's check of a config does."""
    found = {"tokenizer": "gpt2", "eos_token": None, "cache_dir": None, "texts": [], "packages": []}
    return subprocess.CompletedProcess([], 0, json.dumps(found), "")


def _run_command(argv: Sequence[str], *_: Any, **__: Any) -> environments.CommandResult:
    imports = any("importlib" in word for word in argv)
    return environments.CommandResult(
        0, json.dumps({"version": [3, 11, 7], "missing": [], "versions": {}}) if imports else "3 11 7\n", ""
    )


def install() -> None:
    """Connect midstream with the simulation, once."""
    operating_system.install_identities()
    hardware.install()
    pace.install()
    unseen.install()
    replace_everywhere(host_pool.open_host, _open_host)
    replace_everywhere(
        open_bucket.open_bucket, lambda url, access=None: buckets.Client(url, lambda: WORLDS[-1].bucket_here())
    )
    replace_everywhere(process_start.spawn, _spawn_attempt)
    replace_everywhere(process_start.detached, list)
    replace_everywhere(process_start.kills_left_behind, lambda: False)
    replace_everywhere(migration_process._spawn, _spawn_migration)
    replace_everywhere(copy_tree.copy_tree, copies.copy_tree)
    replace_everywhere(send_files.send_files, copies.send_files)
    replace_everywhere(environments.run_command, functools.wraps(environments.run_command)(_run_command))
    replace_everywhere(host_links.meet, lambda first, others, internal=None, ports=(): f"{first.name}:29400")
    replace_everywhere(host_links.try_links, _try_links)
    replace_everywhere(target_checks.clock_skew, _clock_skew)
    replace_everywhere(input_check._read, _read_config)
    replace_everywhere(inventory.collect, dict)
    replace_everywhere(record_repair._engines, _engines)
    replace_everywhere(slurm.query_in_background, lambda: None)
    clusters.install(lambda: WORLDS[-1].cluster)
    stub = Path(__file__).parent / "package"
    replace_everywhere(bundle.packages_directory, lambda: stub)
    links.ALL = frozenset(sys.modules) | {"midstream_host", "midstream_core"}
    journal.Journal.write = _counted_line  # type: ignore[method-assign, assignment]
    migration_process.WATCH_INTERVAL = WATCH_INTERVAL  # type: ignore[misc]
    polls = watcher.PollInterval
    watcher.PollInterval = lambda seconds, hosts: polls(max(seconds, WATCH_INTERVAL), hosts)  # type: ignore[misc]
    status_file.HEARTBEAT = engine.STEP  # type: ignore[misc]
