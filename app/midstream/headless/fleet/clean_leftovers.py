"""`--clean`: list leftovers of killed processes; --yes removes those listed."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.format import size
from midstream.json_events.fleet_events import LeftoverEvent, RemovingEvent
from midstream.json_events.result_event import CleanResult
from midstream.output import Output, table
from midstream.suggestions import nearest_run

if TYPE_CHECKING:
    from midstream.check.fleet_leftovers import AnyLeftover, Leftover, SliceLeftover
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool

COLUMNS = ("HOST", "RUN", "LEFTOVER", "KIND", "SIZE", "")


def clean(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """List leftovers of one run or all on reachable hosts; with ``--yes`` remove them.

    Each that is removed is printed before: ``--yes`` agrees to that list, and what has changed since stays.
    """
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        files = _files(fleet, hosts, options.clean, output)
        slices = [] if options.clean else _slices(fleet, output)
        agreed = [each for each in (*files, *slices) if not each.kept] if options.yes else []
        for each in agreed:
            _announce(each, output)
        if any(each in agreed for each in files):
            files = _files(fleet, hosts, options.clean, output, agreed)
    finally:
        hosts.close()
    for each in files if output.as_json else ():
        output.event(LeftoverEvent(**asdict(each)))
    if any(each in agreed for each in slices):
        slices = _slices(fleet, output, agreed)
    for left in slices:
        _show_slice(left, output)
    count, removable = len(files) + len(slices), sum(not (each.kept or each.removed) for each in (*files, *slices))
    rows = [_row(each) for each in files]
    output.event(
        CleanResult(leftovers=count, removable=removable),
        table([COLUMNS, *rows]) if rows else [] if slices else ["no leftovers"],
    )
    if removable and not options.yes:
        output.message(f"midstream: nothing was removed; --clean --yes removes {removable}")
    return Exit.DONE


def _files(
    fleet: Fleet, hosts: HostPool, run_id: str, output: Output, agreed: Collection[AnyLeftover] | None = None
) -> list[Leftover]:
    """Return leftovers on hosts and in buckets, after removing those ``agreed``.

    Raises:
        UsageError: No host that answers has the run.
    """
    from midstream.check.fleet_leftovers import Examined, Skipped, find_leftovers

    listed: list[Leftover] = []
    known, unreachable = set[str](), list[str]()
    for found in find_leftovers(fleet, hosts, run_id, remove=agreed is not None, agreed=agreed):
        if isinstance(found, Examined):
            known |= set(found.runs)
        elif isinstance(found, Skipped):
            unreachable += [] if found.run else [found.host]
            if agreed is None:
                output.message(f"midstream: {found.run or found.host} is skipped: {found.error}")
        else:
            listed.append(found)
    if agreed is None and run_id and run_id not in known:
        raise UsageError(f"no run {run_id!r}", nearest_run(run_id, sorted(known), unreachable))
    return listed


def _slices(fleet: Fleet, output: Output, agreed: Collection[AnyLeftover] | None = None) -> list[SliceLeftover]:
    """Return the slices that are left, after deleting those that are ``agreed``."""
    from midstream.check.fleet_leftovers import SliceProblem
    from midstream.check.slice_leftovers import find_slice_leftovers

    listed: list[SliceLeftover] = []
    for found in find_slice_leftovers(fleet, output.message, remove=agreed is not None, agreed=agreed):
        if not isinstance(found, SliceProblem):
            listed.append(found)
        elif agreed is None:
            output.message(f"midstream: {found.message}")
    return listed


def _announce(each: Leftover | SliceLeftover, output: Output) -> None:
    """Print what is about to be removed."""
    from midstream.check.fleet_leftovers import Leftover

    if isinstance(each, Leftover):
        event = RemovingEvent(host=each.host, run=each.run, path=each.path, kind=each.kind, bytes=each.bytes)
        text = f"removing {each.run}/{each.path} on {each.host} ({each.kind}, {size(each.bytes)})"
    else:
        event = RemovingEvent(host="", run="", path=each.slice.path, kind="slice", bytes=0)
        text = f"deleting {each.slice.path} ({each.text})"
    output.event(event, text)


def _row(each: Leftover) -> tuple[str, ...]:
    word = "removed" if each.removed else each.kept and f"kept: {each.kept}"
    return each.host, each.run, each.path, each.kind, size(each.bytes), word


def _show_slice(each: SliceLeftover, output: Output) -> None:
    from midstream.listing import documents

    values = documents.slice_event(each.slice).fields()
    event = LeftoverEvent(path=each.slice.path, kind="slice", kept=each.kept, removed=each.removed, values=values)
    output.event(event, f"{each.slice.path}: {each.text}: {each.note}")
