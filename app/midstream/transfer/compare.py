"""What differs between two checkpoints, by their manifests alone: no array is read."""

from __future__ import annotations

import math
from typing import Any

from midstream_engine import records


def compare(a: records.Manifest, b: records.Manifest) -> list[dict[str, Any]]:
    """One entry for every array that is not in both with the same contents, by name: ``what`` is ``missing`` (only in
    a), ``extra`` (only in b), ``different`` (axes, shape or dtype) or ``changed`` (contents: ``cells`` of ``of``,
    where it is cut)."""
    first, second = ({entry.name: entry for entry in side.array_entries} for side in (a, b))
    hashes = [{entry.path: entry.sha256 for entry in side.object_entries} for side in (a, b)]
    found: list[dict[str, Any]] = []
    for name in sorted(first.keys() | second.keys()):
        left, right = first.get(name), second.get(name)
        if left is None or right is None:
            here = left or right
            assert here is not None
            what = "missing" if right is None else "extra"
            found.append({"name": name, "what": what, "shape": here.shape, "dtype": here.dtype})
            continue
        fields = {
            field: [getattr(left, field), getattr(right, field)]
            for field in ("axes", "shape", "dtype", "grid")
            if getattr(left, field) != getattr(right, field)
        }
        if fields:
            found.append({"name": name, "what": "different", **fields})
            continue
        if left.sha256 and right.sha256:  # packed: each has a hash of its own
            if left.sha256 != right.sha256:
                found.append({"name": name, "what": "changed", "packed": True, "elements": math.prod(left.shape)})
            continue
        cells = [path for path in left.objects if not path.endswith("/zarr.json")]
        changed = [path for path in cells if hashes[0].get(path) != hashes[1].get(path)]
        if changed:
            entry = {"name": name, "what": "changed", "cells": len(changed), "of": len(cells)}
            found.append({**entry, "packed": not left.grid, "elements": math.prod(left.shape)})
    return found


def line(entry: dict[str, Any]) -> str:
    """An entry for people."""
    name, what = entry["name"], entry["what"]
    if what == "missing":
        return f"- {name}: only in a ({entry['dtype']} {entry['shape']})"
    if what == "extra":
        return f"+ {name}: only in b ({entry['dtype']} {entry['shape']})"
    if what == "different":
        fields = [key for key in ("axes", "shape", "dtype", "grid") if key in entry]
        return f"! {name}: " + "; ".join(f"{key} {entry[key][0]} in a, {entry[key][1]} in b" for key in fields)
    if entry["packed"] and "cells" in entry:  # an old manifest
        return f"~ {name}: may differ (it lies in {records.PACKED}, which does)"
    if entry["packed"]:
        return f"~ {name}: differs ({entry['elements']} elements)"
    return f"~ {name}: {entry['cells']} of {entry['of']} cells differ"
