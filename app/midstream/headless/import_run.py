"""`--migrate PATH --to TARGET`: a checkpoint of another trainer becomes a run of ours where it lies, and then moves."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Process
    from midstream.hosts.host_pool import Hosts

MODULE = "midstream_engine.convert"
LOOK = 2.0  # seconds between looks at how far it is


@dataclass(frozen=True)
class Place:
    """A directory of one of the fleet's hosts."""

    host: str
    path: str


def is_path(text: str) -> bool:
    """Whether ``--migrate`` names a place and not a run: run ids have neither of these."""
    return "/" in text or ":" in text


def place_of(fleet: Fleet, text: str) -> Place:
    """``HOST:PATH``, or a directory of this machine where that is a host of the fleet. UsageError elsewhere."""
    from midstream.fleet.fleet import LocalHost, nearest

    name, colon, path = text.partition(":")
    if colon and "/" not in name:
        if name not in fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(fleet.hosts)))
        if not path.startswith(("/", "~")):
            raise UsageError(f"{text}: write the whole path, as {name}:/data/{path or 'checkpoints'}")
        return Place(name, path)
    here = [name for name, config in fleet.hosts.items() if isinstance(config, LocalHost)]
    if not here:
        raise UsageError(
            f"{text}: this machine is none of the fleet's hosts",
            "name the host: HOST:PATH, or add a host of type local",
        )
    return Place(here[0], posixpath.abspath(posixpath.expanduser(text)))


def run_id_of(path: str) -> str:
    """A run's id from the checkpoint's own name, without what only says which step it is."""
    parts = [part for part in path.split("/") if part not in ("", "~", "checkpoints")]
    while len(parts) > 1 and re.fullmatch(r"(global_step|step-)\d+", parts[-1]):
        parts.pop()
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", parts[-1]).strip("-.")[:60] if parts else "imported"


def adopt(
    fleet: Fleet, hosts: Hosts, options: argparse.Namespace, engine: Sequence[str], output: Output
) -> tuple[str, str]:
    """The run that the checkpoint at ``options.migrate`` has become, and its host. It is converted there; the source
    stays as it is. ``engine``: flags of the engine's, by which a model alone becomes a run. MidstreamError with the
    converter's own line where that cannot be."""
    from midstream.launch.host_group_start import prepare_target
    from midstream.launch.start_attempt import Launch, engine_environment
    from midstream.remote.runs.attempts import with_setup

    fleet.target(options.to)  # before anything is written
    place = place_of(fleet, options.migrate)
    host, config = hosts.get(place.host), fleet.hosts[place.host]
    run_id = run_id_of(place.path)
    output.talk(f"adopting {place.host}:{place.path} as run {run_id}")
    ready = prepare_target(hosts, fleet, fleet.target(place.host), output.talk)[place.host]
    building = posixpath.join(host.root, "imports", run_id)
    command = [ready.environment.python, "-P", "-m", MODULE, place.path, building]
    command += ["--run-id", run_id, "--root", host.root, *(["--", *engine] if engine else [])]
    env = engine_environment(host.root, config, ready.engine.directory, Launch(run_id, place.host), 0)
    process = host.open(with_setup(command, config.setup), env=env)
    try:
        code = _follow(process, output)
        said = process.stderr_text().strip().splitlines()
    finally:
        process.close()
    if code:
        why = (said[-1] if said else f"exit code {code}").removeprefix("midstream: ")
        raise MidstreamError(f"{place.host}: {why}", "docs/import.md says what can be imported", Exit.REFUSED)
    return run_id, place.host


def _follow(process: Process, output: Output) -> int:
    """Tell what the converter says, until it ends; its exit code."""
    told = 0
    while True:
        try:
            code: int | None = process.wait(LOOK)
        except TimeoutError:
            code = None
        lines = process.stderr_text().splitlines()
        for line in lines[told:]:
            output.talk(f"    {line}")
        told = len(lines)
        if code is not None:
            return code
