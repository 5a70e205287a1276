"""The attempt's entry in ``lineage.json``."""

from __future__ import annotations

import dataclasses

from midstream_core import records


def record_start(paths: records.RunPaths, entry: records.LineageEntry) -> None:
    """Append an attempt to the lineage."""
    with records.locked(paths.lock):
        lineage = records.Lineage.read_or_none(paths.lineage) or records.Lineage(paths.run_id)
        lineage.with_entry(entry).write(paths.lineage)


def record_end(paths: records.RunPaths, attempt: int, last_step: int) -> None:
    """Write the last step of an attempt into the lineage."""
    with records.locked(paths.lock):
        lineage = records.Lineage.read_or_none(paths.lineage)
        for entry in lineage.entries if lineage else []:
            if entry.attempt == attempt and lineage is not None:
                lineage.with_entry(dataclasses.replace(entry, last_step=last_step)).write(paths.lineage)
