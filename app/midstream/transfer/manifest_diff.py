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
    differences: list[dict[str, JsonValue]] = []
    for name in sorted(first.keys() | second.keys()):
        in_a, in_b = first.get(name), second.get(name)
        if in_a is None or in_b is None:
            present = in_a or in_b
            assert present is not None
            what = "missing" if in_b is None else "extra"
            differences.append({"name": name, "what": what, "shape": present.shape, "dtype": present.dtype})
            continue
        fields = {
            field: [getattr(in_a, field), getattr(in_b, field)]
            for field in ("axes", "shape", "dtype", "grid")
            if getattr(in_a, field) != getattr(in_b, field)
        }
        if fields:
            differences.append({"name": name, "what": "different", **fields})
            continue
        if in_a.sha256 and in_b.sha256:  # packed arrays have a hash each
            if in_a.sha256 != in_b.sha256:
                differences.append({"name": name, "what": "changed", "packed": True, "elements": math.prod(in_a.shape)})
            continue
        chunks = [path for path in in_a.objects if not path.endswith("/zarr.json")]
        changed = [path for path in chunks if hashes[0].get(path) != hashes[1].get(path)]
        if changed:
            entry = {"name": name, "what": "changed", "chunks": len(changed), "of": len(chunks)}
            differences.append({**entry, "packed": not in_a.grid, "elements": math.prod(in_a.shape)})
    return differences


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
