"""TPU slices of the fleet file's projects as lines and JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.format import age_since
from midstream.json_events.fleet_events import ProblemEvent
from midstream.listing import documents
from midstream.operations.list_slices import list_slices, remarks
from midstream.output import Output, table

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def show_slices(fleet: Fleet, output: Output) -> None:
    """Print every slice of the fleet file's projects and zones."""
    slices = list_slices(fleet)
    if output.as_json:
        for slice_, target in slices.slices:
            output.event(documents.slice_event(slice_, target))
        for problem in slices.problems:
            output.event(ProblemEvent(message=problem))
        return
    rows = [("SLICE", "TARGET", "STATE", "TYPE", "RUNTIME", "WORKERS", "PRICE CLASS", "AGE", "")]
    for slice_, target in slices.slices:
        rows.append(
            (
                slice_.path,
                target or "-",
                slice_.state,
                " ".join(filter(None, (slice_.accelerator_type, slice_.topology))) or "-",
                slice_.runtime_version or "-",
                str(len(slice_.workers)) if slice_.workers else "-",
                slice_.price_class,
                age_since(slice_.created),
                ", ".join(remarks(slice_)),
            )
        )
    if len(rows) > 1:
        output.value({}, ["", *table(rows)])
    for problem in slices.problems:
        output.message(f"midstream: {problem}")
