"""`--label`: name, tags and note of a run, as this machine's lists show them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.json_events.result_event import LabelResult
from midstream.listing import labels
from midstream.operations.fleet_snapshot import find_run
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def undo_label(options: argparse.Namespace, output: Output) -> int:
    """Take the last edit of a label back, and print that run's label."""
    if options.label or _changes(options):
        raise UsageError("--undo takes back the last edit, of whichever run it was", "midstream --label --undo")
    stored, run_id = labels.undo()
    _print(run_id, stored.of(run_id), output)
    return Exit.DONE


def label(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print the label of a run, after the changes that the flags ask for."""
    run_id, changes = options.label, _changes(options)
    if not run_id:
        raise UsageError("--label needs RUN", "midstream --label RUN --name NAME --tags A,B --note TEXT")
    before = labels.load().of(run_id)
    if before == labels.Label():  # the name may be mistyped
        _find(fleet, run_id)
    now = labels.Label.read(**{"name": before.name, "tags": ",".join(before.tags), "note": before.note, **changes})
    if now != before:
        labels.edit(run_id, now)
    _print(run_id, now, output)
    return Exit.DONE


def _changes(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in ("name", "tags", "note") if getattr(options, name) is not None}


def _find(fleet: Fleet, run_id: str) -> None:
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        find_run(hosts, run_id)
    finally:
        hosts.close()


def _print(run_id: str, shown: labels.Label, output: Output) -> None:
    words = [f"{what} {text}" for what, text in
             (("name", shown.name), ("tags", ", ".join(shown.tags)), ("note", shown.note)) if text]  # fmt: skip
    result = LabelResult(run=run_id, name=shown.name, tags=list(shown.tags), note=shown.note)
    output.event(result, f"{run_id}: {'; '.join(words) or 'no name, tags or note'}")
