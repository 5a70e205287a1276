"""Verify a checkpoint where it lies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit
from midstream.headless.array_tree import tree, values
from midstream.headless.examine_checkpoint import Examined, Place, examine, find, read_manifest
from midstream.output import Output, size

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def verify(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """Re-hash a checkpoint where it lies: a directory here, HOST:PATH, gs://..., or a run's newest one. With ``--deep``
    its arrays are decoded too, and the root digest is recomputed from them."""
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

    hosts = Hosts(fleet) if fleet else Hosts(Fleet())
    try:
        place = find(fleet, hosts, options.verify)
        found = examine(place, deep=options.deep) if options.deep or place.in_bucket else _rehash(place)
        if options.deep and output.as_json and not found.problems:
            for value in values(read_manifest(place), found.contents):
                output.value(value)
    finally:
        hosts.close()
    value: dict[str, Any] = {
        "event": "result",
        "ok": found.ok,
        "checkpoint": str(place),
        "objects": found.objects,
        "bytes": found.bytes,
        "root_digest": found.recomputed,
        "deep": options.deep,
        "problems": [list(problem) for problem in found.problems],
    }
    if found.ok:
        how = f"; arrays decoded by {found.by}" if options.deep else ""
        what = f"{found.objects} objects, {size(found.bytes)}, root digest {found.recomputed}"
        output.value(value, f"{place}: {what}: whole{how}")
        return Exit.DONE
    output.value(value, [f"{place}/{path}: {what}" for path, what in found.problems])
    output.talk(
        f"midstream: {place} is damaged: {len(found.problems)} problems (restore another: midstream --checkpoints)"
    )
    return Exit.FAILED


def _rehash(place: Place) -> Examined:
    """On the host, by the standard library alone."""
    from midstream.transfer import verify_objects

    report = verify_objects(place.host, place.directory)
    problems = list(report.problems)
    recorded = report.root_digest if report.ok else ""
    return Examined(report.objects, report.bytes, recorded or "", report.root_digest, problems, {}, "")


def show_tree(fleet: Fleet | None, options: argparse.Namespace, output: Output) -> int:
    """A checkpoint's arrays as a tree, from its manifest alone; with ``--deep`` their norms, measured where it lies."""
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

    hosts = Hosts(fleet or Fleet())
    try:
        place = find(fleet, hosts, options.checkpoints)
        manifest = read_manifest(place)
        found = examine(place, deep=True) if options.deep else None
    finally:
        hosts.close()
    contents = found.contents if found else {}
    if output.as_json:
        for value in values(manifest, contents):
            output.value(value)
    what = f"{len(manifest.arrays)} arrays, {len(manifest.objects)} objects, {size(manifest.size)}"
    head = [f"{place}: {manifest.name} of run {manifest.run_id}", f"{what}, root digest {manifest.root_digest}"]
    ok = found is None or found.ok
    value = {"event": "result", "ok": ok, "checkpoint": str(place), "root_digest": manifest.root_digest}
    output.value(value, [*head, *tree(manifest, contents)])
    if found is not None and not found.ok:
        output.talk(f"midstream: {place} is damaged: {len(found.problems)} problems (midstream --verify names them)")
        return Exit.FAILED
    return Exit.DONE
