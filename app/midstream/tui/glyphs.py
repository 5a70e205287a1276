"""The signs on the screen, and their plain forms for terminals (and ears) that have ASCII alone."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.migrate import model as migrate
from midstream.tui import palette
from midstream.watch import snapshot as watch
from midstream_engine import records


@dataclass(frozen=True)
class Glyphs:
    """One set of signs. Each is one cell wide but for ``arrow``."""

    running: str = "●"
    busy: str = "◐"
    idle: str = "○"
    failed: str = "✗"
    passed: str = "✓"
    now: str = "▶"
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
    """(glyph, colour) of a run's state: see RunView.state."""
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
    """(glyph, colour) of a host's link."""
    return {
        watch.LIVE: (glyphs.running, palette.GOOD),
        watch.CONNECTING: (glyphs.busy, palette.WAIT),
        watch.STALE: (glyphs.busy, palette.WAIT),
    }.get(link, (glyphs.failed, palette.BAD))


def migration_state(glyphs: Glyphs, state: str) -> tuple[str, str]:
    """(glyph, colour) of a migration's state."""
    return {
        migrate.RUNNING: (glyphs.running, palette.GOOD),
        migrate.INTERRUPTED: (glyphs.busy, palette.WAIT),
        migrate.COMPLETED: (glyphs.passed, palette.ACCENT),
        migrate.ROLLED_BACK: (glyphs.idle, palette.DIM),
    }.get(state, (glyphs.failed, palette.BAD))


def check_state(glyphs: Glyphs, state: str) -> tuple[str, str]:
    """(glyph, colour) of a preflight check, of a claim's verdict, or of an event of a phase."""
    if state in (migrate.PASS, migrate.VERIFIED, migrate.DONE):
        return glyphs.passed, palette.GOOD
    if state == migrate.WARN:
        return glyphs.stale, palette.WAIT
    if state == migrate.NOT_CHECKED:
        return glyphs.idle, palette.DIM
    if state in (migrate.FAIL, migrate.CLAIM_FAILED, migrate.FAILED):
        return glyphs.failed, palette.BAD
    return glyphs.now, palette.ACCENT
