"""Checkpoints of a run as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping

from midstream import format
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.widgets.table import Column, Row
from midstream.watch.snapshot import RunView

CHECKPOINT_COLUMNS = (
    Column("CHECKPOINT"),
    Column("STEP", right=True),
    Column("ATTEMPT", right=True, drop=3),
    Column("SIZE", right=True),
    Column("AGE", right=True),
    Column("STATE"),
    Column("PINNED", drop=2),
    Column("DIGEST", drop=1),
)


def checkpoint_rows(
    run: RunView, screen_state: ScreenState, glyphs: Glyphs, verified: Mapping[str, str] = {}
) -> list[Row]:
    """Return the checkpoints of a run as rows, newest first."""
    rows = []
    for checkpoint in sorted(run.checkpoints, key=lambda checkpoint: (-checkpoint.step, -checkpoint.attempt)):
        if checkpoint.damaged:
            state = (f"{glyphs.failed} damaged", palette.BAD)
        elif not checkpoint.complete:
            state = (f"{glyphs.busy} partial", palette.WAIT)
        elif not checkpoint.accepted:
            state = (f"{glyphs.failed} does not count", palette.BAD)
        else:
            state = _verified(verified.get(checkpoint.name, ""), glyphs)
        cells = (
            checkpoint.name,
            format.grouped(checkpoint.step),
            str(checkpoint.attempt),
            format.size(checkpoint.size),
            format.age(screen_state.now - checkpoint.created if checkpoint.created else None),
            state,
            "pinned" if checkpoint.pinned else "",
            format.digest(checkpoint.root_digest),
        )
        rows.append(Row(checkpoint.name, cells, dim=not checkpoint.complete))
    return rows


def _verified(state: str, glyphs: Glyphs) -> tuple[str, str]:
    """Return the state of a complete checkpoint, with the result of a verification."""
    if state == "verified":
        return f"{glyphs.passed} verified", palette.GOOD
    if state == "damaged":
        return f"{glyphs.failed} damaged", palette.BAD
    if state == "not checked":
        return f"{glyphs.stale} not checked", palette.WAIT
    return (f"{glyphs.busy} {state}", palette.WAIT) if state else (f"{glyphs.passed} complete", palette.GOOD)
