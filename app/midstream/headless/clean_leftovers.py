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
        for each in listed:
            if not isinstance(each, FoundLeftover | SliceLeftover):
                output.message(f"midstream: {each.message}")
        found = [each for each in listed if isinstance(each, FoundLeftover | SliceLeftover)]
        agreed = [each for each in found if not each.kept] if options.yes else []
        for each in agreed:
            _announce(each, output)
        if agreed:
            again = operation.clean(hosts, output.message, options.clean, agreed)
            found = [each for each in again if isinstance(each, FoundLeftover | SliceLeftover)]
    finally:
        hosts.close()
    rows: list[tuple[str, ...]] = [COLUMNS]
    for each in found:
        if isinstance(each, SliceLeftover):
            _show_slice(each, output)
            continue
        rows.append((each.host, each.run, each.path, each.kind, size(each.bytes), each.note))
        if output.as_json:
            output.event(LeftoverEvent(**asdict(each)))
    removable = sum(not (each.kept or each.removed) for each in found)
    result = CleanResult(leftovers=len(found), removable=removable)
    output.event(result, table(rows) if len(rows) > 1 else [] if found else ["no leftovers"])
    if removable and not options.yes:
        output.message(f"midstream: nothing was removed; --clean --yes removes {removable}")
    return Exit.DONE


def _announce(each: FoundLeftover | SliceLeftover, output: Output) -> None:
    """Print what is about to be removed."""
    from midstream.check.fleet_leftovers import FoundLeftover

    if isinstance(each, FoundLeftover):
        event = RemovingEvent(host=each.host, run=each.run, path=each.path, kind=each.kind, bytes=each.bytes)
        path = f"{each.run}/{each.path}" if each.run else each.path
        text = f"removing {path} on {each.host} ({each.kind}, {size(each.bytes)})"
    else:
        event = RemovingEvent(host="", run="", path=each.slice.path, kind="slice", bytes=0)
        text = f"deleting {each.slice.path} ({each.text})"
    output.event(event, text)


def _show_slice(each: SliceLeftover, output: Output) -> None:
    from midstream.listing import documents

    values = documents.slice_event(each.slice).fields()
    event = LeftoverEvent(path=each.slice.path, kind="slice", kept=each.kept, removed=each.removed, values=values)
    output.event(event, f"{each.slice.path}: {each.text}: {each.note}")
