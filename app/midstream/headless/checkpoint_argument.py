"""What a person means by a CHECKPOINT: a directory of this machine, HOST:PATH, or a RUN's newest complete one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError, UsageError
from midstream.headless.status import look, unknown_run
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts


def place(fleet: Fleet | None, hosts: Hosts, text: str) -> tuple[Host, str]:
    """The connected host and the directory. UsageError where there is no such place; a directory needs no fleet."""
    from midstream.fleet.fleet import LocalHost, nearest
    from midstream.hosts.local_host import LocalMachine

    if "/" in text and ":" not in text.split("/")[0]:
        if not os.path.isdir(text):
            raise UsageError(
                f"{text} is no directory of this machine", "a checkpoint is a directory, HOST:PATH, or a RUN"
            )
        return LocalMachine("here", LocalHost()), os.path.abspath(text)
    if fleet is None:
        raise UsageError(f"{text}: a fleet file is needed to find it", "midstream --init writes one")
    if ":" in text.split("/")[0]:
        name, directory = text.split(":", 1)
        if name not in fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(fleet.hosts)))
        return hosts.get(name), directory
    return _newest_of(fleet, hosts, text)


def _newest_of(fleet: Fleet, hosts: Hosts, run_id: str) -> tuple[Host, str]:
    snapshot = look(fleet, hosts)
    copies = snapshot.copies(run_id)
    if not copies:
        raise unknown_run(run_id, snapshot)
    run = copies[0]
    points = [point for point in run.checkpoints if point.complete and point.accepted]
    if not points:
        words = f"run {run_id} on {run.host} has no complete checkpoint"
        raise MidstreamError(f"{words}: {run.trouble}" if run.trouble else words, "wait for its first save")
    newest = max(points, key=lambda point: (point.step, point.attempt))
    host = hosts.get(run.host)
    return host, records.RunPaths(host.root, run_id, run.store).checkpoint(newest.name)
