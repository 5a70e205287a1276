"""`--clean`: list leftovers of killed processes; with --yes remove them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.output import Output, size, table
from midstream.suggestions import nearest_run

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def clean(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """List leftovers of one run or all on reachable hosts; with ``--yes`` remove them."""
    from midstream.check.fleet_leftovers import Examined, Skipped, find_leftovers
    from midstream.hosts.host_pool import HostPool

    rows = [("HOST", "RUN", "LEFTOVER", "KIND", "SIZE", "")]
    known, unreachable, removable = set[str](), list[str](), 0
    hosts = HostPool(fleet)
    try:
        for found in find_leftovers(fleet, hosts, options.clean, remove=options.yes):
            if isinstance(found, Examined):
                known |= set(found.runs)
            elif isinstance(found, Skipped):
                unreachable += [] if found.run else [found.host]
                output.message(f"midstream: {found.run or found.host} is skipped: {found.error}")
            else:
                removable += not (found.kept or found.removed)
                word = "removed" if found.removed else found.kept and f"kept: {found.kept}"
                rows.append((found.host, found.run, found.path, found.kind, size(found.bytes), word))
                if output.as_json:
                    output.value({"event": "leftover", **asdict(found)})
    finally:
        hosts.close()
    if options.clean and options.clean not in known:
        raise UsageError(f"no run {options.clean!r}", nearest_run(options.clean, sorted(known), unreachable))
    listed, removable_slices = (0, 0) if options.clean else _slices(fleet, options.yes, output)
    count, removable = len(rows) - 1 + listed, removable + removable_slices
    output.value(
        {"event": "result", "ok": True, "leftovers": count, "removable": removable},
        table(rows) if len(rows) > 1 else [] if listed else ["no leftovers"],
    )
    if removable and not options.yes:
        output.message(f"midstream: nothing was removed; --clean --yes removes {removable}")
    return Exit.DONE


def _slices(fleet: Fleet, remove: bool, output: Output) -> tuple[int, int]:
    """Print the slices that are left; with ``remove`` delete those that have ended.

    Returns how many were found, and how many of them can be removed and stay.
    """
    from midstream.check.fleet_leftovers import SliceProblem
    from midstream.check.slice_leftovers import find_slice_leftovers
    from midstream.listing import documents

    listed = removable = 0
    for found in find_slice_leftovers(fleet, output.message, remove=remove):
        if isinstance(found, SliceProblem):
            output.message(f"midstream: {found.message}")
            continue
        listed += 1
        removable += not (found.kept or found.removed)
        left = {"event": "leftover", "kind": "slice", "kept": found.kept, "removed": found.removed}
        output.value({**documents.slice_value(found.slice), **left}, f"{found.slice.path}: {found.text}: {found.note}")
    return listed, removable
