"""Compare two checkpoints by their manifests alone: no array is read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.headless.examine_checkpoint import find, read_manifest
from midstream.output import Output
from midstream.transfer.compare import compare, line

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

SHOWN = 200  # lines


def diff(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Exit code 0 where both hold the same state, 1 where they differ. ``fleet``: None for two directories of this
    machine."""
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

    hosts = Hosts(fleet or Fleet())
    try:
        sides = [read_manifest(find(fleet, hosts, text)) for text in options.diff]
    finally:
        hosts.close()
    differences = compare(*sides)
    same = sides[0].root_digest == sides[1].root_digest
    value = {
        "event": "result",
        "ok": same,
        "root_digests": [side.root_digest for side in sides],
        "checkpoints": [side.name for side in sides],
        "differences": differences,
    }
    if same:
        output.value(value, f"the same state: root digest {sides[0].root_digest}")
        return Exit.DONE
    lines = [line(entry) for entry in differences]
    if not lines:
        lines = ["every array is the same; the training state in train.json is not"]
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    output.value(value, [f"a: {options.diff[0]}", f"b: {options.diff[1]}", *lines[:SHOWN], *more])
    return Exit.FAILED
