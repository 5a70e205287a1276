"""What earlier moves, copies and rehearsals have measured: better than any assumption about the same two machines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate.execution import migration_directory
from midstream.migrate.execution.journal import read_events
from midstream.migrate.model import DOWNTIME_PHASES
from midstream_engine import records

EARLIER = 40  # newest migrations that are looked at
BELIEVED = 5  # newest of those between the same two machines
TELLING = 16e6  # bytes; what takes longer for a smaller copy is not the link
SCALES = frozenset({"save", "copy", "verify", "restore"})  # entries that grow with the state
TRIED = 16  # newest steps on the target that its pace is taken from


@dataclass(frozen=True)
class Rates:
    """``copy``: bytes a second between the two hosts. ``step``: seconds a step on the target. ``entries``: seconds of
    the ledger's entries, as moves in the same mode between the same hosts took them, for the present size of the state.
    None, or absent: nobody has measured it."""

    copy: float | None = None
    step: float | None = None
    entries: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Earlier:
    """One migration of the past. ``copies``: ``(bytes, seconds)``; ``rehearsed``: seconds a step on its target."""

    run_id: str
    source: str
    target: str  # host
    mode: str
    size: int  # bytes of the state
    measured: Mapping[str, float] = field(default_factory=dict)
    copies: tuple[tuple[int, float], ...] = ()
    rehearsed: float = 0.0


def measured(earlier: Iterable[Earlier], run_id: str, source: str, target: str, mode: str, size: int) -> Rates:
    """What ``earlier`` migrations, newest first, say of a move of ``size`` bytes from host to host."""
    between = [one for one in earlier if (one.source, one.target) == (source, target)]
    copies = [count / seconds for one in between for count, seconds in one.copies if count >= TELLING and seconds > 0]
    steps = [one.rehearsed for one in between if one.run_id == run_id and one.rehearsed > 0]
    alike = [one for one in between if one.mode == mode and one.measured][:BELIEVED]
    entries = {
        name: statistics.median(one.measured.get(name, 0.0) * _growth(name, one.size, size) for one in alike)
        for name in (DOWNTIME_PHASES if alike else ())
    }
    return Rates(statistics.median(copies[:BELIEVED]) if copies else None, steps[0] if steps else None, entries)


def _growth(entry: str, before: int, now: int) -> float:
    return max(1.0, now / before) if entry in SCALES and before >= TELLING else 1.0


def pace_on(curve: Sequence[Mapping[str, Any]], lineage: records.Lineage | None, target: str) -> float | None:
    """Seconds a step that the run took on ``target`` when it was there; None where it never was."""
    there = {entry.attempt for entry in (lineage.entries if lineage else ()) if entry.target == target}
    took = [row["throughput/duration"] for row in curve if row.get("attempt") in there and "throughput/duration" in row]
    return statistics.median(took[-TRIED:]) if len(took) >= TRIED else None


def look_back() -> list[Earlier]:
    """The migrations that this operator's machine knows of, newest first."""
    found = []
    for name in migration_directory.migration_ids()[:EARLIER]:
        one = migration_directory.MigrationDirectory(name)
        try:
            plan, events = one.plan(), read_events(one.journal_file)
        except (records.RecordError, MidstreamError):
            continue  # an older version's, or damaged
        ledger = one.ledger()
        facts: dict[str, Any] = {}
        for event in events:
            if event.event == "fact":
                facts.update(event.detail)
        copies = [
            (facts[count], facts[seconds])
            for count, seconds in (("rehearsal_bytes", "rehearsal_seconds"), ("copied_bytes", "copy_seconds"))
            if count in facts and seconds in facts
        ]
        found.append(
            Earlier(
                plan.run_id,
                plan.source,
                plan.target_host,
                "" if facts.get("fallen_back") else plan.mode,
                plan.checkpoint_bytes,
                ledger.measured if ledger else {},
                tuple(copies),
                float(facts.get("rehearsed_seconds") or 0.0),
            )
        )
    return found
