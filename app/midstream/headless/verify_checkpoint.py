"""Modes `--verify CHECKPOINT` and `--checkpoints CHECKPOINT`: hashes, arrays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.errors import Exit
from midstream.format import size
from midstream.headless.array_tree import events, tree
from midstream.json_events.result_event import ArraysResult, VerifyResult
from midstream.operations import examine_checkpoint
from midstream.operations.examine_checkpoint import examine, find, read_manifest
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def verify(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Hash a checkpoint in place.

    Forms: a directory, HOST:PATH, gs://..., s3://..., or a run, whose newest checkpoint is hashed.

    With ``--deep`` its arrays are also decoded and the root digest is recomputed from them.
    """
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet) if fleet else HostPool(Fleet())
    try:
        location = find(fleet, hosts, options.verify)
        examination = examine_checkpoint.verify(location, deep=options.deep)
        if options.deep and output.as_json and not examination.problems:
            for event in events(read_manifest(location), examination.contents):
                output.event(event)
    finally:
        hosts.close()
    damage = examine_checkpoint.problems_of(examination)
    event = VerifyResult(
        ok=examination.ok,
        checkpoint=str(location),
        objects=examination.objects,
        bytes=examination.bytes,
        root_digest=examination.recomputed,
        deep=options.deep,
        problems=damage,
    )
    if examination.ok:
        how = f"; arrays decoded by {examination.decoder}" if options.deep else ""
        what = (
            f"{count(examination.objects, 'object')}, {size(examination.bytes)}, root digest {examination.recomputed}"
        )
        output.event(event, f"{location}: verified: {what}{how}")
        return Exit.DONE
    output.event(event, [f"{location}/{path}: {what}" for path, what in damage])
    problems = count(len(damage), "problem")
    output.message(f"midstream: {location} is damaged: {problems} (midstream --checkpoints lists others)")
    return Exit.FAILED


def show_tree(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Show a checkpoint's arrays as a tree.

    With ``--deep``, their norms are shown too, computed on the host.
    """
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet or Fleet())
    try:
        location = find(fleet, hosts, options.checkpoints)
        manifest = read_manifest(location)
        examination = examine(location, deep=True) if options.deep else None
    finally:
        hosts.close()
    contents = examination.contents if examination else {}
    if output.as_json:
        for event in events(manifest, contents):
            output.event(event)
    what = f"{count(len(manifest.arrays), 'array')}, {count(len(manifest.objects), 'object')}, {size(manifest.size)}"
    head = [f"{location}: {manifest.name} of run {manifest.run_id}", f"{what}, root digest {manifest.root_digest}"]
    ok = examination is None or examination.ok
    result = ArraysResult(ok=ok, checkpoint=str(location), root_digest=manifest.root_digest)
    output.event(result, [*head, *tree(manifest, contents)])
    if examination is not None and not examination.ok:
        problems = count(len(examination.problems), "problem")
        output.message(f"midstream: {location} is damaged: {problems} (midstream --verify {location} names them)")
        return Exit.FAILED
    return Exit.DONE
