"""Differences between two checkpoints, by their manifests alone: no array is read."""

from __future__ import annotations

import math
from typing import Any

from midstream.counts import agree, count
from midstream_core import records
from midstream_core.json_types import JsonValue


def diff_manifests(a: records.Manifest, b: records.Manifest) -> list[dict[str, JsonValue]]:
    """Compare two manifests, array by array.

    Returns:
        An entry for every array that differs, by name. ``what`` is ``missing`` (only in a), ``extra`` (only in b),
        ``different`` (axes, shape, dtype or grid) or ``changed`` (contents; ``chunks`` of ``of`` if it has chunks).
    """
    first, second = ({entry.name: entry for entry in manifest.array_entries} for manifest in (a, b))
    hashes = [{entry.path: entry.sha256 for entry in manifest.object_entries} for manifest in (a, b)]
    found: list[dict[str, JsonValue]] = []
    for name in sorted(first.keys() | second.keys()):
        left, right = first.get(name), second.get(name)
        if left is None or right is None:
            present = left or right
            assert present is not None
            what = "missing" if right is None else "extra"
            found.append({"name": name, "what": what, "shape": present.shape, "dtype": present.dtype})
            continue
        fields = {
            field: [getattr(left, field), getattr(right, field)]
            for field in ("axes", "shape", "dtype", "grid")
            if getattr(left, field) != getattr(right, field)
        }
        if fields:
            found.append({"name": name, "what": "different", **fields})
            continue
        if left.sha256 and right.sha256:  # packed arrays have a hash each
            if left.sha256 != right.sha256:
                found.append({"name": name, "what": "changed", "packed": True, "elements": math.prod(left.shape)})
            continue
        chunks = [path for path in left.objects if not path.endswith("/zarr.json")]
        changed = [path for path in chunks if hashes[0].get(path) != hashes[1].get(path)]
        if changed:
            entry = {"name": name, "what": "changed", "chunks": len(changed), "of": len(chunks)}
            found.append({**entry, "packed": not left.grid, "elements": math.prod(left.shape)})
    return found


def describe_difference(entry: dict[str, Any]) -> str:
    """Describe an entry of `diff_manifests` in one line."""
    name, what = entry["name"], entry["what"]
    if what == "missing":
        return f"- {name}: only in a ({entry['dtype']} {entry['shape']})"
    if what == "extra":
        return f"+ {name}: only in b ({entry['dtype']} {entry['shape']})"
    if what == "different":
        fields = [key for key in ("axes", "shape", "dtype", "grid") if key in entry]
        return f"! {name}: " + "; ".join(f"{key} {entry[key][0]} in a, {entry[key][1]} in b" for key in fields)
    if entry["packed"] and "chunks" in entry:  # a manifest without the hashes of packed arrays
        return f"~ {name}: may differ (it is part of {records.PACKED}, which differs)"
    if entry["packed"]:
        return f"~ {name}: differs ({entry['elements']} elements)"
    return f"~ {name}: {entry['chunks']} of {count(entry['of'], 'chunk')} {agree(entry['of'], 'differs', 'differ')}"
