"""The CHECKPOINT argument: a local directory, HOST:PATH, or a RUN.

A RUN stands for its newest complete checkpoint.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError, UsageError
from midstream.operations.fleet_snapshot import find_run
from midstream.suggestions import nearest
from midstream_core import records
from midstream_core.listed_checkpoint import newest_checkpoint

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool


def resolve_checkpoint(fleet: Fleet | None, hosts: HostPool, text: str) -> tuple[Host, str]:
    """Return the connected host and the directory.

    Raises:
        UsageError: There is no such directory, host or run, or it needs a fleet file.
        MidstreamError: The run has no complete checkpoint.
    """
    from midstream.fleet.fleet import LocalHostConfig
    from midstream.hosts.local_host import LocalHost

    if "/" in text and ":" not in text.split("/")[0]:
        if not os.path.isdir(text):
            raise UsageError(
                f"{text} is not a directory of this machine", "a checkpoint is a directory, HOST:PATH, or a RUN"
            )
        return LocalHost("here", LocalHostConfig()), os.path.abspath(text)
    if fleet is None:
        raise UsageError(f"{text}: no fleet file", "midstream --init writes one")
    if ":" in text.split("/")[0]:
        name, directory = text.split(":", 1)
        if name not in fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(fleet.hosts)))
        host = hosts.get(name)
        return host, _without_tilde(host, directory)
    return _newest_of(hosts, text)


def _without_tilde(host: Host, directory: str) -> str:
    """Return a directory with ``~`` replaced by the home on the host."""
    if directory != "~" and not directory.startswith("~/"):
        return directory
    home = host.run(["/bin/sh", "-c", 'printf %s "$HOME"'], what="read $HOME").stdout
    return os.fsdecode(home) + directory[1:]


def _newest_of(hosts: HostPool, run_id: str) -> tuple[Host, str]:
    run = find_run(hosts, run_id)
    checkpoint = newest_checkpoint(run.usable)
    if checkpoint is None:
        words = f"run {run_id} on {run.host} has no complete checkpoint"
        raise MidstreamError(f"{words}: {run.problem}" if run.problem else words, "wait for its first checkpoint")
    host = hosts.get(run.host)
    return host, records.RunPaths(host.root, run_id, run.store).checkpoint(checkpoint.name)
