"""Mode `--migrate PATH --to TARGET`: convert a checkpoint to a run, on its host."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless.migration.migration_request import request_of
from midstream.json_events.migration_events import ImportEvent
from midstream.output import Output
from midstream.suggestions import nearest
from midstream_core.object_store.urls import in_bucket

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Process
    from midstream.hosts.host_pool import HostPool

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
    parts = [part for part in path.split("/") if part not in ("", "~", "checkpoints")]
    while len(parts) > 1 and re.fullmatch(r"(global_step|step-)\d+", parts[-1]):
        parts.pop()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", parts[-1]).strip("-.")[:60] if parts else "imported"


def import_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags that the converter gets."""
    given = {
        "--gqa-layout": options.gqa_layout,
        "--rms-epsilon": options.rms_epsilon,
        "--cast-parameters": options.cast_parameters,
        "--config": options.config,
    }
    return [word for flag, value in given.items() if value for word in (flag, value)]


def import_plan(hosts: HostPool, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> None:
    """Print the plan of an import and its migration, and the checks of its target.

    Writes nothing.

    Args:
        hosts: Connections to the fleet's hosts.
        options: Options of the command line.
        engine: Flags of the engine.
        output: Receives the plan and the checks.

    Raises:
        UsageError: Host, path or target are invalid.
        MidstreamError: The checkpoint cannot be read, or does not fit the target, or a check failed.
    """
    from midstream.check.check_result import FAIL
    from midstream.headless.check_lines import print_check
    from midstream.headless.migration.print_plan import print_plan
    from midstream.migrate.planning import import_plan as planning
    from midstream.migrate.planning import preflight
    from midstream.operations.fleet_snapshot import fleet_snapshot

    hosts.fleet.target(options.to)
    source = host_path_of(hosts.fleet, options.migrate)
    run_id = run_id_of(source.path)
    request = request_of(options, run_id, source.host, engine)
    plan = planning.plan_import(
        hosts, fleet_snapshot(hosts, remember=not options.dry_run), request, source.path,
        config=options.config or "", cast_parameters=options.cast_parameters or "", flags=import_flags(options),
    )  # fmt: skip
    flags = import_flags(options)
    output.event(
        ImportEvent(run=run_id, source=source.host, path=source.path, target=options.to, flags=flags),
        f"would import {source} as run {run_id}, then migrate it to {options.to}" if options.dry_run else "",
    )
    print_plan(plan, options, output)
    failed = None
    for check in preflight.import_checks(hosts, plan):
        print_check(check, output)
        failed = failed or (check if check.state == FAIL else None)
    if failed is not None:
        raise MidstreamError(f"preflight refused: {failed.name}: {failed.detail}", failed.hint, Exit.REFUSED)


def adopt(hosts: HostPool, options: argparse.Namespace, engine: Sequence[str], output: Output) -> tuple[str, str]:
    """Convert the checkpoint at ``options.migrate`` on its host.

    Returns the run id and the host. The checkpoint itself is not changed.

    Args:
        hosts: Connections to the fleet's hosts.
        options: Flags of the command line.
        engine: Flags of the engine, which a model without a training config needs.
        output: Output of the command.

    Raises:
        UsageError: Host or path are invalid.
        MidstreamError: The converter failed; the message is its last line.
    """
    from midstream.hosts.container_command import in_container
    from midstream.launch.host_group_start import prepare_target
    from midstream.launch.launch_ownership import sign_import
    from midstream.launch.start_attempt import Launch, engine_environment
    from midstream_host.runs.process_start import with_setup

    fleet = hosts.fleet
    fleet.target(options.to)  # a wrong target is reported before anything is written
    source = host_path_of(fleet, options.migrate)
    host, config = hosts.get(source.host), fleet.hosts[source.host]
    run_id = run_id_of(source.path)
    output.message(f"importing {source} as run {run_id}")
    ready = prepare_target(hosts, fleet.target(source.host), output.message)[source.host]
    building = posixpath.join(host.root, "imports", run_id)
    command = [ready.environment.python, "-P", "-m", MODULE, source.path, building]
    command += ["--run-id", run_id, "--root", host.root, *import_flags(options), *(["--", *engine] if engine else [])]
    env = engine_environment(host.root, config, ready.engine.directory, Launch(run_id, source.host), 0)
    command = in_container(config.container, command, root=host.root, variables=env)
    process = host.open(with_setup(command, config.setup), env=env)
    try:
        code = _follow(process, output)
        messages = process.stderr_text().strip().splitlines()
    finally:
        process.close()
    if code:
        why = (messages[-1] if messages else f"exit code {code}").removeprefix("midstream: ")
        raise MidstreamError(f"{source.host}: {why}", "docs/how-to/import.md says what can be imported", Exit.REFUSED)
    sign_import(host, run_id)
    return run_id, source.host


def _follow(process: Process, output: Output) -> int:
    """Print the converter's messages until it exits. Return its exit code."""
    printed = 0
    while True:
        try:
            code: int | None = process.wait(POLL_INTERVAL)
        except TimeoutError:
            code = None
        lines = process.stderr_text().splitlines()
        for line in lines[printed:]:
            output.message(f"    {line}")
        printed = len(lines)
        if code is not None:
            return code
