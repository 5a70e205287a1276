"""`--diff`: compare two checkpoints by their manifests, without reading arrays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.json_events.result_event import DiffResult
from midstream.operations.examine_checkpoint import find, read_manifest
from midstream.output import Output
from midstream.transfer.manifest_diff import describe_difference, diff_manifests

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
        manifests = [read_manifest(find(fleet, hosts, text)) for text in options.diff]
    finally:
        hosts.close()
    differences = diff_manifests(*manifests)
    same = manifests[0].root_digest == manifests[1].root_digest
    result = DiffResult(
        ok=same,
        root_digests=[manifest.root_digest for manifest in manifests],
        checkpoints=[manifest.name for manifest in manifests],
        differences=differences,
    )
    if same:
        output.event(result, f"equal states: root digest {manifests[0].root_digest}")
        return Exit.DONE
    lines = [describe_difference(entry) for entry in differences]
    if not lines:
        lines = ["all arrays are equal; the training state in train.json differs"]
    more = [f"and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else []
    output.event(result, [f"a: {options.diff[0]}", f"b: {options.diff[1]}", *lines[:MAX_LINES], *more])
    return Exit.FAILED
