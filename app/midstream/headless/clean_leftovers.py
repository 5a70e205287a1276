"""`--clean`: list leftovers of killed processes; --yes removes those listed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.format import size
from midstream.json_events.fleet_events import LeftoverEvent, RemovingEvent
from midstream.json_events.result_event import CleanResult
from midstream.output import Output, table

if TYPE_CHECKING:
    from midstream.check.fleet_leftovers import FoundLeftover, SliceLeftover
    from midstream.fleet.fleet import Fleet

COLUMNS = ("HOST", "RUN", "LEFTOVER", "KIND", "SIZE", "")


def clean(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """List leftovers of one run or all on reachable hosts; with ``--yes`` remove them.

    Each that is removed is printed before: ``--yes`` agrees to that list, and what has changed since stays.
    """
    from midstream.check.fleet_leftovers import FoundLeftover, SliceLeftover
    from midstream.hosts.host_pool import HostPool
    from midstream.operations import clean as operation

    hosts = HostPool(fleet)
    try:
        listed = list(operation.clean(hosts, output.message, options.clean))
        for leftover in listed:
            if not isinstance(leftover, FoundLeftover | SliceLeftover):
                output.message(f"midstream: {leftover.message}")
        leftovers = [leftover for leftover in listed if isinstance(leftover, FoundLeftover | SliceLeftover)]
        agreed = [leftover for leftover in leftovers if not leftover.kept] if options.yes else []
        for leftover in agreed:
            _announce(leftover, output)
        if agreed:
            again = operation.clean(hosts, output.message, options.clean, agreed)
            leftovers = [leftover for leftover in again if isinstance(leftover, FoundLeftover | SliceLeftover)]
    finally:
        hosts.close()
    rows: list[tuple[str, ...]] = [COLUMNS]
    for leftover in leftovers:
        if isinstance(leftover, SliceLeftover):
            _show_slice(leftover, output)
            continue
        rows.append((leftover.host, leftover.run, leftover.path, leftover.kind, size(leftover.bytes), leftover.note))
        if output.as_json:
            output.event(LeftoverEvent(**asdict(leftover)))
    removable = sum(not (leftover.kept or leftover.removed) for leftover in leftovers)
    result = CleanResult(leftovers=len(leftovers), removable=removable)
    output.event(result, table(rows) if len(rows) > 1 else [] if leftovers else ["no leftovers"])
    if removable and not options.yes:
        output.message(f"midstream: nothing was removed; --clean --yes removes {removable}")
    return Exit.DONE


def _announce(leftover: FoundLeftover | SliceLeftover, output: Output) -> None:
    """Print what is about to be removed."""
    from midstream.check.fleet_leftovers import FoundLeftover

    if isinstance(leftover, FoundLeftover):
        event = RemovingEvent(
            host=leftover.host, run=leftover.run, path=leftover.path, kind=leftover.kind, bytes=leftover.bytes
        )
        path = f"{leftover.run}/{leftover.path}" if leftover.run else leftover.path
        text = f"removing {path} on {leftover.host} ({leftover.kind}, {size(leftover.bytes)})"
    else:
        event = RemovingEvent(host="", run="", path=leftover.slice.path, kind="slice", bytes=0)
        text = f"deleting {leftover.slice.path} ({leftover.text})"
    output.event(event, text)


def _show_slice(leftover: SliceLeftover, output: Output) -> None:
    from midstream.listing import documents

    values = documents.slice_event(leftover.slice).fields()
    event = LeftoverEvent(
        path=leftover.slice.path, kind="slice", kept=leftover.kept, removed=leftover.removed, values=values
    )
    output.event(event, f"{leftover.slice.path}: {leftover.text}: {leftover.note}")
