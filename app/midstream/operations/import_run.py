"""Convert the checkpoint of another program to a run, on the host that has it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.suggestions import nearest
from midstream_core.object_store.urls import in_bucket

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Process
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.plan import Plan
    from midstream.migrate.journal.request import Request

MODULE = "midstream_engine.convert"
POLL_INTERVAL = 2.0  # seconds


@dataclass(frozen=True)
class HostPath:
    """A directory of a host, or the URL of one in a bucket, which that host imports."""

    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


def host_path_of(fleet: Fleet, text: str) -> HostPath:
    """Parse ``HOST:PATH``, or a directory of this machine.

    PATH may be the URL of a bucket.

    Raises:
        UsageError: The host is unknown, or this machine is not a host of the fleet.
    """
    name, colon, path = ("", "", text) if in_bucket(text) else text.partition(":")
    if colon and "/" not in name:
        if name not in fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(fleet.hosts)))
        if not path.startswith(("/", "~")) and not in_bucket(path):
            raise UsageError(f"{text}: write an absolute path, such as {name}:/data/{path or 'checkpoints'}")
        return HostPath(name, path)
    here = fleet.local_hosts
    if not here:
        raise UsageError(
            f"{text}: this machine is not a host of the fleet",
            "name the host: HOST:PATH, or add a host of type local",
        )
    if in_bucket(text):
        return HostPath(here[0], text.rstrip("/"))
    return HostPath(here[0], posixpath.abspath(posixpath.expanduser(text)))


def run_id_of(path: str) -> str:
    """Derive a run id from a checkpoint path, without its step directory."""
    parts = [word for word in path.split("/") if word not in ("", "~", "checkpoints")]
    while len(parts) > 1 and re.fullmatch(r"(global_step|step-|checkpoint-)\d+", parts[-1]):
        parts.pop()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", parts[-1]).strip("-.")[:60] if parts else "imported"


@dataclass(frozen=True)
class ImportRequest:
    """A checkpoint to import, and what the converter needs beside it."""

    path: str  # HOST:PATH, or a directory of this machine
    target: str  # the target that the run is migrated to
    config: str = ""  # file of a training config on the host
    gqa_layout: str = ""
    rms_epsilon: str = ""
    cast_parameters: str = ""
    engine: tuple[str, ...] = ()  # flags of the engine, which a model without a training config needs

    @property
    def flags(self) -> list[str]:
        """The flags that the converter gets."""
        given = {
            "--gqa-layout": self.gqa_layout,
            "--rms-epsilon": self.rms_epsilon,
            "--cast-parameters": self.cast_parameters,
            "--config": self.config,
        }
        return [word for flag, value in given.items() if value for word in (flag, value)]


@dataclass(frozen=True)
class ImportedRun:
    """Run that an import has made, and its host."""

    run_id: str
    host: str


def plan_import(hosts: HostPool, request: ImportRequest, migration: Request, *, remember: bool = True) -> Plan:
    """Plan an import and the migration of its run. Writes nothing on hosts.

    Args:
        hosts: Connections to the fleet's hosts.
        request: The import.
        migration: The migration of the run, with the run's id and host.
        remember: Remember the names of the runs that are seen, for later hints.

    Raises:
        UsageError: Host, path or target are invalid.
        MidstreamError: The checkpoint cannot be read, or does not fit the target.
    """
    from midstream.migrate.planning import import_plan
    from midstream.operations.fleet_snapshot import fleet_snapshot

    source = host_path_of(hosts.fleet, request.path)
    return import_plan.plan_import(
        hosts,
        fleet_snapshot(hosts, remember=remember),
        migration,
        source.path,
        config=request.config,
        cast_parameters=request.cast_parameters,
        flags=request.flags,
    )


def import_run(hosts: HostPool, request: ImportRequest, say: Callable[[str], None]) -> ImportedRun:
    """Convert the checkpoint on its host. The checkpoint itself is not changed.

    ``say`` receives the progress.

    Raises:
        UsageError: Host, path or target are invalid.
        MidstreamError: The converter failed; the message is its last line.
    """
    from midstream.hosts.container_command import in_container
    from midstream.launch.host_group_start import prepare_target
    from midstream.launch.launch_ownership import sign_import
    from midstream.launch.start_attempt import Launch, engine_environment
    from midstream_host.runs.process_start import with_setup

    fleet = hosts.fleet
    fleet.target(request.target)  # a wrong target is reported before anything is written
    source = host_path_of(fleet, request.path)
    host, config = hosts.get(source.host), fleet.hosts[source.host]
    run_id = run_id_of(source.path)
    say(f"importing {source} as run {run_id}")
    ready = prepare_target(hosts, fleet.target(source.host), say)[source.host]
    building = posixpath.join(host.root, "imports", run_id)
    command = [ready.environment.python, "-P", "-m", MODULE, source.path, building, "--run-id", run_id]
    command += ["--root", host.root, *request.flags, *(["--", *request.engine] if request.engine else [])]
    env = engine_environment(host.root, config, ready.engine.directory, Launch(run_id, source.host), 0)
    command = in_container(config.container, command, root=host.root, variables=env)
    process = host.open(with_setup(command, config.setup), env=env)
    try:
        code = follow_converter(process, say)
        messages = process.stderr_text().strip().splitlines()
    finally:
        process.close()
    if code:
        why = (messages[-1] if messages else f"exit code {code}").removeprefix("midstream: ")
        raise MidstreamError(f"{source.host}: {why}", "docs/how-to/import.md says what can be imported", Exit.REFUSED)
    sign_import(host, run_id)
    return ImportedRun(run_id, source.host)


def follow_converter(process: Process, say: Callable[[str], None]) -> int:
    """Report the converter's messages until it exits. Return its exit code."""
    reported = 0
    while True:
        try:
            code: int | None = process.wait(POLL_INTERVAL)
        except TimeoutError:
            code = None
        lines = process.stderr_text().splitlines()
        for line in lines[reported:]:
            say(f"    {line}")
        reported = len(lines)
        if code is not None:
            return code
