"""`--diff`: compare two checkpoints by their manifests, without reading arrays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.json_events.result_event import DiffResult
from midstream.operations.diff_checkpoints import diff_checkpoints
from midstream.operations.examine_checkpoint import find
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

MAX_LINES = 200


def diff(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Compare two checkpoints. Return 0 if their states are equal, 1 if they differ.

    ``fleet`` may be None for two directories of this machine.
    """
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet or Fleet())
    try:
        first, second = (find(fleet, hosts, text) for text in options.diff)
        difference = diff_checkpoints(first, second)
    finally:
        hosts.close()
    lines = difference.lines()
    if not difference.equal:
        more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
        lines = [f"a: {options.diff[0]}", f"b: {options.diff[1]}", *lines[:MAX_LINES], *more]
    result = DiffResult(
        ok=difference.equal,
        root_digests=[manifest.root_digest for manifest in difference.manifests],
        checkpoints=[manifest.name for manifest in difference.manifests],
        differences=difference.arrays,
    )
    output.event(result, lines)
    return Exit.DONE if difference.equal else Exit.FAILED
