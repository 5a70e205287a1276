"""Glyphs of the screens, and their ASCII forms for terminals and screen readers."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.migrate.journal import migration_state as states
from midstream.migrate.journal import phase_names
from midstream.tui.style import palette
from midstream.watch import snapshot as watch
from midstream_core import records


@dataclass(frozen=True, eq=False)
class Glyphs:
    """One set of glyphs, each one cell wide except ``arrow``."""

    running: str = "●"
    busy: str = "◐"
    idle: str = "○"
    failed: str = "✗"
    passed: str = "✓"
    now: str = "▶"
    undone: str = "↶"
    select: str = ">"
    stale: str = "!"
    arrow: str = "→"
    times: str = "×"
    crumb: str = "›"
    rule: str = "─"
    full: str = "█"
    half: str = "▌"
    empty: str = "░"
    axis: str = "│"
    tick: str = "┤"
    corner: str = "└"
    below: str = "┬"
    mark: str = "▲"
    point: str = "◆"
    chosen: str = "■"
    up: str = "↑"
    down: str = "↓"
    seam: str = "┊"
    dot: str = "·"
    ellipsis: str = "…"
    columns: str = "▁▂▃▄▅▆▇█"
    braille: bool = True


UNICODE = Glyphs()
ASCII = Glyphs(
    running="*",
    busy="~",
    idle="o",
    failed="x",
    passed="+",
    now=">",
    undone="<",
    arrow="->",
    times="x",
    crumb=">",
    rule="-",
    full="#",
    half="=",
    empty=".",
    axis="|",
    tick="+",
    corner="+",
    below="+",
    mark="^",
    point="$",
    chosen="#",
    up="^",
    down="v",
    seam=":",
    dot="-",
    ellipsis="~",
    columns="_.-:=+*#",
    braille=False,
)

_TRAINS = frozenset({records.TRAINING, records.SAVING, records.REPLAYING})
_BAD = frozenset({records.FAILED, "lost", "damaged"})


def run_state(glyphs: Glyphs, state: str) -> tuple[str, str]:
    """Return (glyph, colour) of a run's state: see RunView.state."""
    if state in _TRAINS:
        return glyphs.running, palette.GOOD
    if state in _BAD:
        return glyphs.failed, palette.BAD
    if state == records.FINISHED:
        return glyphs.passed, palette.ACCENT
    if state in (records.STOPPED, "empty"):
        return glyphs.idle, palette.DIM
    return glyphs.busy, palette.WAIT


def link_state(glyphs: Glyphs, link: str) -> tuple[str, str]:
    """Return (glyph, colour) of a host's link."""
    return {
        watch.LIVE: (glyphs.running, palette.GOOD),
        watch.CONNECTING: (glyphs.busy, palette.WAIT),
        watch.STALE: (glyphs.busy, palette.WAIT),
    }.get(link, (glyphs.failed, palette.BAD))


def migration_state(glyphs: Glyphs, state: str) -> tuple[str, str]:
    """Return (glyph, colour) of a migration's state."""
    return {
        states.RUNNING: (glyphs.running, palette.GOOD),
        states.INTERRUPTED: (glyphs.busy, palette.WAIT),
        states.COMPLETED: (glyphs.passed, palette.ACCENT),
        states.ROLLED_BACK: (glyphs.idle, palette.DIM),
    }.get(state, (glyphs.failed, palette.BAD))


def check_state(glyphs: Glyphs, state: str) -> tuple[str, str]:
    """Return (glyph, colour) of a check, of a claim's verdict, or of a phase's event."""
    from midstream.check.check_result import FAIL, PASS, WARN
    from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED

    if state in (PASS, VERIFIED, phase_names.DONE):
        return glyphs.passed, palette.GOOD
    if state == WARN:
        return glyphs.stale, palette.WAIT
    if state == NOT_CHECKED:
        return glyphs.idle, palette.DIM
    if state in (FAIL, CLAIM_FAILED, phase_names.FAILED):
        return glyphs.failed, palette.BAD
    return glyphs.now, palette.ACCENT
