"""Re-hash a checkpoint where it lies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.headless.place import place
from midstream.output import Output, size

if TYPE_CHECKING:
    from midstream.fleet.config import Fleet


def verify(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Re-hash a checkpoint where it lies: a directory here, HOST:PATH, or a run's newest one."""
    from midstream.fleet.config import Fleet
    from midstream.hosts.open import Hosts
    from midstream.transfer import verify_objects

    hosts = Hosts(fleet) if fleet else Hosts(Fleet())
    try:
        host, directory = place(fleet, hosts, options.verify)
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
