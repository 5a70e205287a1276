"""The phases of a migration in one line: done, running, failed or undone."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.migrate.journal import phase_names
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text

STEPS = (
    phase_names.PLAN,
    phase_names.PREFLIGHT,
    phase_names.PREPARE,
    phase_names.CUTOVER,
    phase_names.RELAUNCH,
    phase_names.CERTIFY,
    phase_names.FINISH,
)
UNDONE = "undone"  # state of a phase whose effects a rollback has removed
MAX_JOINT = 6


def at(step: str) -> dict[str, str]:
    """Return the states of all phases when ``step`` is the current one."""
    current = STEPS.index(step)
    return {
        name: phase_names.DONE if index < current else phase_names.STARTED if index == current else ""
        for index, name in enumerate(STEPS)
    }


def of_migration(view: MigrationView) -> dict[str, str]:
    """Return the states in a journal of all phases, and of the rollback if any."""
    states = {phase_names.PLAN: phase_names.DONE, phase_names.PREFLIGHT: phase_names.DONE}
    for event in view.events:
        if event.event == "phase" and event.phase in (*STEPS[2:], phase_names.ROLLBACK):
            ended = event.state in (phase_names.DONE, phase_names.FAILED)
            states[event.phase] = event.state if ended else phase_names.STARTED
    if view.rolled_back:
        for name in STEPS[2:]:
            if states.get(name) in (phase_names.DONE, phase_names.STARTED):
                states[name] = UNDONE
    else:
        states.pop(phase_names.ROLLBACK, None)
    return states


def line(glyphs: Glyphs, states: Mapping[str, str], width: int) -> Text:
    """Draw the phases: ``✓ plan ── ✓ preflight ── ▶ prepare``.

    With little room, draw the glyphs and the current name.

    With a rollback, the phases that had not begun are left out: none follows.
    """
    names: list[str] = list(STEPS)
    if phase_names.ROLLBACK in states:
        names = [*(name for name in STEPS if states.get(name)), phase_names.ROLLBACK]
    joints = len(names) - 1
    free = width - 2 - sum(len(name) + 2 for name in names)
    if free < 2 * joints:
        return _short(glyphs, names, states)
    rule = min(MAX_JOINT, free // joints - 2)
    text = Text("  ", no_wrap=True)
    for number, name in enumerate(names):
        if number:
            text.append(f" {glyphs.rule * rule} " if rule else "  ", palette.FAINT)
        sign, style = _mark(glyphs, states.get(name, ""))
        text.append(f"{sign} {name}", style)
    return text


def _short(glyphs: Glyphs, names: list[str], states: Mapping[str, str]) -> Text:
    """Draw ``✓✓✓▶○○○ cutover (4 of 7)``."""
    text = Text("  ", no_wrap=True)
    for name in names:
        text.append(*_mark(glyphs, states.get(name, "")))
    now = next((name for name in reversed(names) if states.get(name)), names[0])
    text.append(f" {now}", _mark(glyphs, states.get(now, ""))[1])
    return text.append(f" ({names.index(now) + 1} of {len(names)})" if now in STEPS else "", palette.DIM)


def _mark(glyphs: Glyphs, state: str) -> tuple[str, str]:
    return {
        phase_names.DONE: (glyphs.passed, palette.GOOD),
        phase_names.FAILED: (glyphs.failed, palette.BAD),
        phase_names.STARTED: (glyphs.now, f"bold {palette.ACCENT}"),
        UNDONE: (glyphs.undone, palette.WAIT),
    }.get(state, (glyphs.idle, palette.DIM))
