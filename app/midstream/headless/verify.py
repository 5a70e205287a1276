"""Re-hash a checkpoint where it lies."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless.look import look, unknown_run
from midstream.output import Output, size

if TYPE_CHECKING:
    from midstream.fleet.config import Fleet
    from midstream.hosts.open import Hosts


def verify(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Re-hash a checkpoint where it lies: a directory here, HOST:PATH, or a run's newest one."""
    from midstream.fleet.config import Fleet, LocalHost
    from midstream.hosts.local import LocalMachine
    from midstream.hosts.open import Hosts
    from midstream.transfer import verify_objects

    text = options.verify
    hosts = Hosts(fleet) if fleet else Hosts(Fleet())
    try:
        if fleet is None:
            host, directory = LocalMachine("here", LocalHost()), os.path.abspath(text)
        elif ":" in text.split("/")[0]:
            name, directory = text.split(":", 1)
            if name not in fleet.hosts:
                raise UsageError(f"no host {name!r} in the fleet file", f"known: {', '.join(fleet.hosts)}")
            host = hosts.get(name)
        elif "/" in text:
            raise UsageError(
                f"{text} is no directory of this machine", "a checkpoint is a directory, HOST:PATH, or a RUN"
            )
        else:
            host, directory = _newest_of(fleet, hosts, text)
        host.connect()
        report = verify_objects(host, directory)
    finally:
        hosts.close()
    where = f"{host.name}:{directory}"
    value = {
        "event": "result",
        "ok": report.ok,
        "checkpoint": where,
        "objects": report.objects,
        "bytes": report.bytes,
        "root_digest": report.root_digest,
        "problems": [list(problem) for problem in report.problems],
    }
    if report.ok:
        output.value(
            value, f"{where}: {report.objects} objects, {size(report.bytes)}, root digest {report.root_digest}: whole"
        )
        return Exit.DONE
    output.value(value, [f"{where}/{path}: {what}" for path, what in report.problems])
    output.talk(
        f"midstream: {where} is damaged: {len(report.problems)} problems (restore another: midstream --checkpoints)"
    )
    return Exit.FAILED


def _newest_of(fleet: Fleet, hosts: Hosts, run_id: str):
    from midstream_engine import records

    snapshot = look(fleet, hosts)
    copies = snapshot.copies(run_id)
    if not copies:
        raise unknown_run(run_id, snapshot)
    points = [point for point in copies[0].checkpoints if point.complete]
    if not points:
        raise MidstreamError(f"run {run_id} on {copies[0].host} has no complete checkpoint", "wait for its first save")
    newest = max(points, key=lambda point: (point.step, point.attempt))
    host = hosts.get(copies[0].host)
    return host, records.RunPaths(host.root, run_id).checkpoint(newest.name)
