"""TPU slices of the fleet file's projects as lines and JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.format import age_since
from midstream.listing import documents
from midstream.output import Output, table
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def show_slices(fleet: Fleet, output: Output) -> None:
    """Print every slice of the fleet file's projects and zones."""
    found = fleet_slices.list_slices(fleet)
    names = {fleet_slices.slice_path(name, target): name for name, target in fleet.slices.items()}
    if output.as_json:
        for each in found.slices:
            output.value({"event": "slice", **documents.slice_value(each, names.get(each.path, ""))})
        for problem in found.problems:
            output.value({"event": "problem", "message": problem})
        return
    rows = [("SLICE", "TARGET", "STATE", "TYPE", "RUNTIME", "WORKERS", "PRICE CLASS", "AGE", "")]
    for each in found.slices:
        health = "" if each.health in ("", "HEALTHY") else each.health.lower().replace("_", " ")
        queued = f"queue: {each.queued}" if each.queued not in ("", "ACTIVE", each.state) else ""
        rows.append(
            (
                each.path,
                names.get(each.path, "-"),
                each.state,
                " ".join(filter(None, (each.accelerator_type, each.topology))) or "-",
                each.runtime_version or "-",
                str(len(each.workers)) if each.workers else "-",
                each.price_class,
                age_since(each.created),
                ", ".join(filter(None, (health, queued, each.why))),
            )
        )
    if len(rows) > 1:
        output.value({}, ["", *table(rows)])
    for problem in found.problems:
        output.message(f"midstream: {problem}")
