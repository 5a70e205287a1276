"""A migration in words: its state, its copy, its commands, its claims."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

from midstream.migrate import model
from midstream.tui import glyphs as signs
from midstream.tui import number_format, palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.screen_state import World, hardware
from midstream.tui.styled_text import Text
from midstream.tui.widgets.bars import copy_progress
from midstream.watch.snapshot import RunView

# phase -> (what can go wrong in it, what is safe): said while it is under way.
RISKS = {
    model.PLAN: ("nothing", "nothing has been changed"),
    model.PREFLIGHT: ("a check fails", "nothing has been changed"),
    model.PREPARE: (
        "the target lacks room, packages or a link",
        "the source trains on; nothing of the run has been changed",
    ),
    model.CUTOVER: ("the link breaks: c goes on from there", "the source is sealed and kept; r starts it again"),
    model.RELAUNCH: (
        "the target does not start: it is rolled back",
        "the source is sealed and kept; r starts it again",
    ),
    model.CERTIFY: ("a claim is refuted: it is rolled back", "the source is sealed and kept; r goes back to it"),
    model.FINISH: ("the target fails later", "r goes back until it has done its healthy steps"),
    model.ROLLBACK: ("the source does not answer: c goes on", "going back to the source; nothing is deleted"),
}
SAFETY = {phase: safe for phase, (_, safe) in RISKS.items()}


def risk(view: model.MigrationView) -> Text:
    """Two lines while it is under way; none afterwards."""
    if view.state != model.RUNNING or view.phase not in RISKS:
        return Text()
    wrong, safe = RISKS[view.phase]
    text = Text("  can go wrong  ", palette.DIM, no_wrap=True).append(f"{wrong}\n", palette.WAIT)
    return text.append("  safe          ", palette.DIM).append(safe, palette.GOOD)


def headline(view: model.MigrationView, glyphs: Glyphs, now: float, target: RunView | None = None) -> Text:
    """Two lines: from where to where and how it stands; what that means."""
    plan = view.plan
    glyph, colour = signs.migration_state(glyphs, view.state)
    text = Text("  ", no_wrap=True)
    text.append(
        f"{plan.source} {plan.source_devices} {glyphs.arrow} {plan.target} {plan.target_devices} devices", palette.TEXT
    )
    step = view.sealed_step
    text.append(f"   step {number_format.grouped(plan.source_step if step is None else step)}", palette.DIM)
    text.append(f"   {glyph} {view.state}", f"bold {colour}")
    if view.state == model.RUNNING:
        text.append(f"  {view.phase}", palette.TEXT)
        since = next((e.time for e in reversed(view.events) if e.event == "phase" and e.state == model.STARTED), None)
        if since is not None:
            text.append(f" for {number_format.seconds(now - since)}", palette.DIM)
    text.append("\n  ")
    proof = view.certificate
    if view.damage and view.open:
        way = "restore one of them from a backup" if view.state == model.DAMAGED else "c restores what is needed"
        text.append(f"{glyphs.failed} {'; '.join(view.damage)} ({way})", palette.BAD)
    elif view.state == model.ROLLED_BACK:
        text.append(f"{glyphs.idle} {plan.source} has the run again", palette.WAIT)
        text.append(f": {view.error}" if view.error else "", palette.DIM)
    elif view.state == model.ROLLBACK_INCOMPLETE or view.error:
        text.append(f"{glyphs.failed} {view.error or 'the rollback is incomplete'}", palette.BAD)
    elif view.state == model.INTERRUPTED:
        text.append(f"{glyphs.stale} no process carries it out at the moment; c goes on with it", palette.WAIT)
    elif view.phase == model.ROLLBACK:
        text.append(f"{glyphs.now} {SAFETY[model.ROLLBACK]}", palette.WAIT)
    elif proof is not None and proof.valid:
        text.append(f"{glyphs.passed} certified", f"bold {palette.GOOD}")
        down = view.downtime.total if view.downtime else None
        text.append(f"  down for {number_format.seconds(down)}" if down is not None else "", palette.TEXT)
        healthy = f"{plan.healthy_steps} healthy steps, {view.steps_given_up(target.step if target else None)} so far"
        after = "the source is retired" if view.finished else f"r goes back until {healthy}"
        text.append(f"  {after}", palette.DIM)
    elif proof is not None:
        refuted = next(claim for claim in proof.claims if claim.verdict != model.VERIFIED)
        text.append(f"{glyphs.failed} not certified: {refuted.name}: {refuted.statement}", palette.BAD)
    else:
        text.append(SAFETY.get(view.phase, ""), palette.DIM)
    return text


def progress(view: model.MigrationView, world: World, glyphs: Glyphs, width: int) -> Text:
    """The phases with their times, the copies, and both sides of the run."""
    text = Text("  ", no_wrap=True)
    used = 2
    for name, (state, seconds) in phase_times(view, world.now).items():
        glyph, colour = signs.check_state(glyphs, state)
        duration = f" {number_format.seconds(seconds)}"
        used += len(name) + len(duration) + 5
        if used > width:
            text.append("\n  ")
            used = len(name) + len(duration) + 7
        text.append(f"{glyph} {name}", colour).append(f"{duration}   ", palette.DIM)
    text.append("\n")
    for detail in copies(view).values():
        text.append_text(copy_progress(glyphs, dict(detail), width)).append("\n")
        if detail.get("object") and (detail.get("bytes_done") or 0) < (detail.get("bytes_total") or 0):
            text.append(f"              {detail['object']}\n", palette.DIM)
    for role, host in (("source", view.plan.source), ("target", view.plan.target_host)):
        run = world.run(host, view.plan.run_id)
        text.append(f"  {role} {host:<10} ", palette.DIM)
        if run is None:
            text.append("the run is not there yet\n" if role == "target" else "not heard of\n", palette.DIM)
            continue
        glyph, colour = signs.run_state(glyphs, run.state)
        text.append(f"{glyph} {run.state}", colour)
        text.append(f"  step {number_format.grouped(run.step)}  {hardware(run, glyphs.times)}", palette.TEXT)
        if world.is_stale(host):
            text.append(f"  {glyphs.stale} silent for {number_format.age(world.run_age(run))}", palette.WAIT)
        text.append("\n")
    note = next((event.message for event in reversed(view.events) if event.event == "note" and event.message), "")
    text.append(f"  {glyphs.dot} {note}" if note else "", palette.DIM)
    text.rstrip()
    return text


def phase_times(view: model.MigrationView, now: float) -> dict[str, tuple[str, float]]:
    """phase -> (its newest state, seconds since it began, to its end where it has one)."""
    began: dict[str, float] = {}
    found: dict[str, tuple[str, float]] = {}
    for event in view.events:
        if event.event != "phase":
            continue
        if event.state == model.STARTED:
            began[event.phase] = event.time
        running = event.state in (model.STARTED, model.PROGRESS)
        until = now if running and view.state == model.RUNNING else event.time
        found[event.phase] = (
            model.STARTED if running else event.state,
            max(0.0, until - began.get(event.phase, event.time)),
        )
    return found


def copies(view: model.MigrationView) -> dict[str, Mapping[str, Any]]:
    """What is copied -> the newest progress of it."""
    return {
        str(event.detail.get("what", "copy")): event.detail
        for event in view.events
        if event.event == "phase" and event.state == model.PROGRESS and event.detail.get("bytes_total") is not None
    }


def command_log(view: model.MigrationView) -> tuple[str, ...]:
    """What was run where, as a person would type it."""
    return tuple(
        f"{_clock(event.time)} {event.detail.get('host', ''):<10} {event.message}"
        for event in view.events
        if event.event == "command"
    )


def journal(view: model.MigrationView) -> tuple[str, ...]:
    """Every line of the journal that is for people; of a copy's progress the newest line alone."""
    shown = []
    for number, event in enumerate(view.events):
        if event.event == "fact":
            continue
        if event.state == model.PROGRESS:
            following = view.events[number + 1] if number + 1 < len(view.events) else None
            if following is not None and following.state == model.PROGRESS:
                continue
            detail = event.detail
            done, total = number_format.size(detail.get("bytes_done")), number_format.size(detail.get("bytes_total"))
            message = f"{detail.get('what', 'copy')} {done} of {total}"
        else:
            message = event.message
        kind = f"{event.phase} {event.state}".strip() if event.event == "phase" else event.event
        for part in (message or "").splitlines() or [""]:
            shown.append(f"{_clock(event.time)} {kind:<18} {part}")
    return tuple(shown)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def claims(view: model.MigrationView, glyphs: Glyphs, width: int) -> Text:
    """The certificate's claims and their verdicts."""
    proof = view.certificate
    if proof is None:
        return Text("\n  no certificate yet: it is made when the target has taken its first steps\n", palette.DIM)
    text = Text()
    for claim in proof.claims:
        glyph, colour = signs.check_state(glyphs, claim.verdict)
        text.append(f"  {glyph} {claim.name:<17}", f"bold {colour}")
        text.append(f"{claim.verdict:<13}", colour)
        lines = textwrap.wrap(claim.statement, max(20, width - 36)) or [""]
        text.append(("\n" + " " * 34).join(lines) + "\n", palette.TEXT)
    text.append(
        f"    {proof.checkpoint}  digest {number_format.digest(proof.root_digest, 24)}  epoch {proof.epoch}",
        palette.DIM,
    )
    return text


def rows_near(run: RunView | None, first: float, stop: float) -> Iterator[Mapping[str, Any]]:
    """Rows with a loss and first <= step < stop, in order; looked for from the end."""
    if run is None:
        return
    curve, begin = run.curve, len(run.curve)
    while begin and curve[begin - 1]["global_step"] >= first:
        begin -= 1
    for index in range(begin, len(curve)):
        if curve[index]["global_step"] >= stop:
            return
        if "train/loss" in curve[index]:
            yield curve[index]


def source_past_the_seal(view: model.MigrationView) -> list[tuple[float, float]]:
    """(step, loss) that the source logged past the seal, where the trajectory was compared with them."""
    if view.certificate is None:
        return []
    trajectory = next((claim for claim in view.certificate.claims if claim.name == "continuity"), None)
    steps = trajectory.evidence.get("steps", ()) if trajectory else ()
    return [(step, loss) for step, loss, *_ in steps]
