"""The steps of a move, in one line: which is done, which is under way, which failed."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.migrate import model
from midstream.tui import palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.styled_text import Text

PLAN, PREFLIGHT, COPY, RELAUNCH, CERTIFY = "Plan", "Preflight", "Copy", "Relaunch", "Certify"
STEPS = (PLAN, PREFLIGHT, COPY, RELAUNCH, CERTIFY)
# Which of the steps a phase belongs to.
STEP_OF = {
    model.PLAN: PLAN,
    model.PREFLIGHT: PREFLIGHT,
    model.PREPARE: COPY,
    model.CUTOVER: COPY,
    model.RELAUNCH: RELAUNCH,
    model.CERTIFY: CERTIFY,
    model.FINISH: CERTIFY,
}


def at(step: str) -> dict[str, str]:
    """States of all steps where ``step`` is the present one."""
    place = STEPS.index(step)
    return {
        name: model.DONE if index < place else model.STARTED if index == place else ""
        for index, name in enumerate(STEPS)
    }


def of_migration(view: model.MigrationView) -> dict[str, str]:
    """The states of all steps as a migration's journal tells them."""
    states = {PLAN: model.DONE, PREFLIGHT: model.DONE}
    ended: set[str] = set()
    for event in view.events:
        step = STEP_OF.get(event.phase)
        if event.event != "phase" or step is None or step in (PLAN, PREFLIGHT):
            continue
        if event.state == model.DONE:
            ended.add(event.phase)
        elif event.state == model.STARTED:
            ended.discard(event.phase)
        states[step] = model.FAILED if event.state == model.FAILED else model.STARTED
    for step in (COPY, RELAUNCH, CERTIFY):
        last = {COPY: model.CUTOVER, RELAUNCH: model.RELAUNCH, CERTIFY: model.CERTIFY}[step]
        if last in ended and states.get(step) != model.FAILED:
            states[step] = model.DONE
    return states


def line(glyphs: Glyphs, states: Mapping[str, str], width: int) -> Text:
    """``✓ Plan ─── ▶ Preflight ─── ○ Copy``."""
    text = Text("  ", no_wrap=True)
    free = width - sum(len(name) + 2 for name in STEPS) - 4 - 2 * (len(STEPS) - 1)
    joint = min(6, max(1, free // (len(STEPS) - 1)))
    for number, name in enumerate(STEPS):
        if number:
            text.append(f" {glyphs.rule * joint} ", palette.FAINT)
        state = states.get(name, "")
        sign, style = {
            model.DONE: (glyphs.passed, palette.GOOD),
            model.FAILED: (glyphs.failed, palette.BAD),
            model.STARTED: (glyphs.now, f"bold {palette.ACCENT}"),
        }.get(state, (glyphs.idle, palette.DIM))
        text.append(f"{sign} {name}", style)
    return text
