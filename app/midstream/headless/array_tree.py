"""The arrays of a checkpoint as a tree: shapes, dtypes, sizes and measured norms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from midstream.counts import count
from midstream.format import size
from midstream.json_events.run_events import ArrayEvent
from midstream.operations.examine_checkpoint import ArrayStatistics
from midstream_core.records import ArrayEntry, Manifest

ITEM_BYTES = {"bool": 1, "float16": 2, "bfloat16": 2}  # dtypes whose name does not end with their bits


def tree(manifest: Manifest, contents: Mapping[str, ArrayStatistics]) -> list[str]:
    """Return one line per folder and array; a folder has the bytes of its arrays."""
    entries = sorted(manifest.array_entries, key=lambda entry: entry.name.split("/"))
    below: dict[tuple[str, ...], int] = {}
    for entry in entries:
        parts = entry.name.split("/")
        for depth in range(len(parts)):
            folder = tuple(parts[:depth])
            below[folder] = below.get(folder, 0) + stored_bytes(entry)
    rows: list[tuple[str, ...]] = []
    above: list[str] = []
    for entry in entries:
        *folders, leaf = entry.name.split("/")
        same = 0
        while same < min(len(folders), len(above)) and folders[same] == above[same]:
            same += 1
        for depth in range(same, len(folders)):
            total = size(below[tuple(folders[: depth + 1])])
            rows.append(("  " * depth + folders[depth] + "/", "", "", total, "", ""))
        above = folders
        rows.append(("  " * len(folders) + leaf, *_columns(entry, contents.get(entry.name))))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(6)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def events(manifest: Manifest, contents: Mapping[str, ArrayStatistics]) -> Iterator[ArrayEvent]:
    """Yield an event for each array."""
    for entry in manifest.array_entries:
        content = contents.get(entry.name)
        yield ArrayEvent(
            name=entry.name,
            axes=entry.axes,
            shape=entry.shape,
            dtype=entry.dtype,
            bytes=stored_bytes(entry),
            grid=entry.grid,
            norm=content.norm if content else None,
            not_finite=content.not_finite if content else None,
        )


def stored_bytes(entry: ArrayEntry) -> int:
    """Return the bytes of an array's elements."""
    bits = "".join(char for char in entry.dtype if char.isdecimal())
    return prod(entry.shape) * (ITEM_BYTES.get(entry.dtype) or int(bits) // 8)


def _columns(entry: ArrayEntry, contents: ArrayStatistics | None) -> tuple[str, ...]:
    lengths = ", ".join(f"{axis}={length}" for axis, length in zip(entry.axes, entry.shape, strict=True))
    layout = count(prod(entry.grid), "chunk") if entry.grid else "packed"
    norm = ""
    if contents is not None:
        norm = f"norm {contents.norm:.6g}" if "float" in entry.dtype else ""
        norm += f"  {contents.not_finite} NOT FINITE" if contents.not_finite else ""
    return f"[{lengths}]", entry.dtype, size(stored_bytes(entry)), layout, norm
