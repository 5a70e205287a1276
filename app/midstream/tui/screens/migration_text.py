"""Texts of a migration: state, progress, commands, claims and journal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from midstream import format
from midstream.counts import count
from midstream.listing.run_facts import hardware
from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.certificate import COMPARED
from midstream.migrate.journal.event import STAGE, shell_line_of
from midstream.migrate.journal.migration_view import VOID, MigrationView
from midstream.migrate.stages import shown_stage
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.bars import copy_progress
from midstream.watch.snapshot import RunView
from midstream_core.json_types import LoggedRow

NARROW = 70  # cells; narrower claims have their statement under them
# phase -> (possible failure, safety), shown while it runs
RISKS = {
    phase_names.PLAN: ("nothing", "nothing has changed"),
    phase_names.PREFLIGHT: ("a check fails", "nothing has changed"),
    phase_names.PREPARE: (
        "the target lacks disk space, packages or a link",
        "the source trains; the run has not changed",
    ),
    phase_names.CUTOVER: ("the link breaks: c continues", "the source has stopped; r restarts it"),
    phase_names.RELAUNCH: (
        "the target does not start: rollback",
        "the source has stopped; r restarts it",
    ),
    phase_names.CERTIFY: ("a claim fails: rollback", "the source has stopped; r returns to it"),
    phase_names.FINISH: ("the target fails later", "r returns to the source until the healthy steps are done"),
    phase_names.ROLLBACK: ("the source is unreachable: c continues", "returning to the source; nothing is deleted"),
}
SAFETY = {phase: safe for phase, (_, safe) in RISKS.items()}


def risk(view: MigrationView) -> Text:
    """Return possible failure and safety of a running phase, else an empty text."""
    if view.state != migration_state.RUNNING or view.phase not in RISKS:
        return Text()
    wrong, safe = RISKS[view.phase]
    text = Text("  risk    ", palette.DIM, no_wrap=True).append(f"{wrong}\n", palette.WAIT)
    return text.append("  safety  ", palette.DIM).append(safe, palette.GOOD)


def headline(view: MigrationView, glyphs: Glyphs, now: float, target: RunView | None = None) -> Text:
    """Return two lines: hosts, step and state; what the state means."""
    plan = view.plan
    glyph, colour = signs.migration_state(glyphs, view.state)
    text = Text("  ", no_wrap=True).append(f"{glyph} {view.state}", f"bold {colour}")
    if view.state == migration_state.RUNNING:
        text.append(f"  {view.phase}", palette.TEXT)
        since = next(
            (e.time for e in reversed(view.events) if e.event == "phase" and e.state == phase_names.STARTED), None
        )
        if since is not None:
            text.append(f" for {format.seconds(now - since)}", palette.DIM)
    devices = count(plan.shape.target_devices, "device")
    text.append(f"   {plan.source} {plan.shape.source_devices} {glyphs.arrow} {plan.target} {devices}", palette.TEXT)
    step = view.sealed_step
    text.append(f"   step {format.grouped(plan.route.source_step if step is None else step)}", palette.DIM)
    text.append("\n  ")
    certificate = view.certificate
    if view.damage and view.open:
        hint = (
            " (restore one from a backup)" if view.state == migration_state.DAMAGED else " (c restores the needed ones)"
        )
        text.append(f"{glyphs.failed} {'; '.join(view.damage)}{'' if view.newer else hint}", palette.BAD)
    elif view.state == migration_state.ROLLED_BACK:
        owns = "owns the run again" if step is not None else "still owns the run"
        text.append(f"{glyphs.idle} {plan.source} {owns}", palette.WAIT)
        text.append(f": {view.error}" if view.error else "", palette.DIM)
    elif view.state == migration_state.ROLLBACK_INCOMPLETE or view.error:
        text.append(f"{glyphs.failed} {view.error or 'the rollback is incomplete'}", palette.BAD)
    elif view.state == migration_state.INTERRUPTED:
        text.append(f"{glyphs.stale} its process has exited; c continues it", palette.WAIT)
    elif view.phase == phase_names.ROLLBACK:
        text.append(f"{glyphs.now} {SAFETY[phase_names.ROLLBACK]}", palette.WAIT)
    elif certificate is not None and certificate.valid:
        text.append(f"{glyphs.passed} certified", f"bold {palette.GOOD}")
        unchecked = ", ".join(certificate.unchecked)
        text.append(f" (not checked: {unchecked})" if unchecked else "", palette.WAIT)
        down = view.downtime.total if view.downtime else None
        text.append(f"  downtime {format.seconds(down)}" if down is not None else "", palette.TEXT)
        done = view.steps_given_up(target.step if target else None)
        healthy = f"{count(plan.policy.healthy_steps, 'healthy step')}, {done:,} so far"
        after = "the source is retired" if view.finished else f"rollback until {healthy}"
        text.append(f"  {after}", palette.DIM)
    elif certificate is not None:
        doubt = certificate.doubt
        why = f": {doubt.name}: {doubt.statement}" if doubt is not None else ""
        text.append(f"{glyphs.failed} not certified{why}", palette.BAD)
    else:
        text.append(SAFETY.get(view.phase, ""), palette.DIM)
    return text


def progress(view: MigrationView, screen_state: ScreenState, glyphs: Glyphs, width: int) -> Text:
    """Return phases with durations, copies, and the run on source and target."""
    text = Text("  ", no_wrap=True)
    used = 2
    for name, (state, seconds) in phase_times(view, screen_state.now).items():
        glyph, colour = signs.check_state(glyphs, state)
        if view.rolled_back and state != phase_names.FAILED and name != phase_names.ROLLBACK:
            glyph, colour = glyphs.undone, palette.WAIT
        duration = f" {format.seconds(seconds)}"
        used += len(name) + len(duration) + 5
        if used > width:
            text.append("\n  ")
            used = len(name) + len(duration) + 7
        text.append(f"{glyph} {name}", colour).append(f"{duration}   ", palette.DIM)
    text.append("\n")
    target = screen_state.run(view.plan.target_host, view.plan.run_id)
    text.append_text(time_left(view, screen_state.now, width, target.step if target else None))
    details = list(copies(view).values())
    for line, detail in zip(copy_progress(glyphs, details, width), details, strict=True):
        text.append_text(line).append("\n")
        if detail.get("object") and (detail.get("bytes_done") or 0) < (detail.get("bytes_total") or 0):
            text.append(f"              {detail['object']}\n", palette.DIM)
    named = max(10, len(view.plan.source), len(view.plan.target_host))
    for role, host in (("source", view.plan.source), ("target", view.plan.target_host)):
        run = screen_state.run(host, view.plan.run_id)
        text.append(f"  {role} {host:<{named}} ", palette.DIM)
        if run is None:
            text.append("no run yet\n" if role == "target" else "no report\n", palette.DIM)
            continue
        glyph, colour = signs.run_state(glyphs, run.state)
        text.append(f"{glyph} {run.state}", colour)
        text.append(f"  step {format.grouped(run.step)}  {hardware(run, glyphs.times)}", palette.TEXT)
        if screen_state.is_stale(host):
            text.append(f"  {glyphs.stale} unreachable for {format.age(screen_state.run_age(run))}", palette.WAIT)
        text.append("\n")
    note = next((event.message for event in reversed(view.events) if event.event == "note" and event.message), "")
    text.append(f"  {glyphs.dot} {note}" if note else "", palette.DIM)
    text.rstrip()
    return text


def time_left(view: MigrationView, now: float, width: int, target_step: int | None = None) -> Text:
    """Return a line with the expected end of a running migration, and its stage.

    For another migration the text is empty.
    """
    remaining = view.remaining(now, target_step)
    if remaining is None:
        return Text()
    stage, expected = view.stage_times.current, view.expected_seconds
    text = Text("  left    ", palette.DIM, no_wrap=True).append(remaining.text(), palette.TEXT)
    if stage:
        elapsed, about = format.seconds(max(0.0, now - view.stage_times.since)), expected.get(stage)
        of = "" if about is None else f" of about {format.seconds(about)}"
        words = f"   {shown_stage(stage)} {elapsed}{of}"
        if len(text) + len(words) > width:
            text.append("\n        ")
        text.append(words, palette.WAIT if remaining.overdue >= 1.0 else palette.DIM)
    return text.append("\n")


def phase_times(view: MigrationView, now: float) -> dict[str, tuple[str, float]]:
    """Map each phase to its newest state and its duration in seconds."""
    began: dict[str, float] = {}
    times: dict[str, tuple[str, float]] = {}
    for event in view.events:
        if event.event != "phase":
            continue
        if event.state == phase_names.STARTED:
            began[event.phase] = event.time
        running = event.state in (phase_names.STARTED, phase_names.PROGRESS)
        until = now if running and view.state == migration_state.RUNNING else event.time
        times[event.phase] = (
            phase_names.STARTED if running else event.state,
            max(0.0, until - began.get(event.phase, event.time)),
        )
    return times


def copies(view: MigrationView) -> dict[str, Mapping[str, Any]]:
    """Map each copied item to its newest progress."""
    return {
        str(event.detail.get("what", "copy")): event.detail
        for event in view.events
        if event.event == "phase"
        and event.state == phase_names.PROGRESS
        and event.detail.get("bytes_total") is not None
    }


def command_log(view: MigrationView) -> tuple[str, ...]:
    """Return what was run, with time and host, or that there is none.

    Each command is followed by a line to paste into a shell.
    """
    lines: list[str] = []
    for event in view.events:
        if event.event == "command":
            lines.append(f"{_clock(event.time)} {event.detail.get('host') or 'here':<10} {event.message}")
            lines.append("  " + " ".join(shell_line_of(event)).rstrip())
    return tuple(lines)


def commands_to_paste(view: MigrationView) -> list[tuple[str, str]]:
    """Return the lines of the command log that can be pasted, newest first.

    An item is (what it does, line of shell).
    """
    lines = [(event.message, shell_line_of(event)[1]) for event in view.events if event.event == "command"]
    return [(prose, line) for prose, line in reversed(lines) if line]


def journal(view: MigrationView) -> tuple[str, ...]:
    """Return the journal as text, with only the newest of consecutive progress lines."""
    shown = []
    for number, event in enumerate(view.events):
        if event.event == "fact" or (event.event == STAGE and event.state == phase_names.PROGRESS):
            continue
        if event.state == phase_names.PROGRESS:
            following = view.events[number + 1] if number + 1 < len(view.events) else None
            if following is not None and following.state == phase_names.PROGRESS:
                continue
            detail = event.detail
            done, total = format.size(detail.get("bytes_done")), format.size(detail.get("bytes_total"))
            message = f"{detail.get('what', 'copy')} {done} of {total}"
        elif event.event == STAGE and event.state == phase_names.DONE:
            message = f"{event.detail.get('stage')} took {format.seconds(event.detail.get('seconds'))}"
        else:
            message = event.message
        kind = f"{event.phase} {event.state}".strip() if event.event == "phase" else event.event
        for line in (message or "").splitlines() or [""]:
            shown.append(f"{_clock(event.time)} {kind:<18} {line}")
    return tuple(shown)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def claims(view: MigrationView, glyphs: Glyphs, width: int) -> Text:
    """Return the certificate's claims and their verdicts."""
    certificate = view.certificate
    if certificate is None:
        return Text("\n  no certificate yet: written after the first steps on the target\n", palette.DIM)
    text = Text()
    if view.verdict == VOID:
        plan = view.plan
        is_back = "is on" if view.state == migration_state.ROLLED_BACK else "returns to"
        words = f"void: rolled back. {plan.run_id} {is_back} {plan.source}; the claims were about {plan.target}."
        text.append(f"  {glyphs.undone} {format.folded(words, width, 4)}\n", f"bold {palette.WAIT}")
    beside = width >= NARROW
    for claim in certificate.claims:
        glyph, colour = signs.check_state(glyphs, claim.verdict)
        text.append(f"  {glyph} {claim.name:<17}", f"bold {colour}")
        text.append(f"{claim.verdict:<13}" if beside else f"{claim.verdict}\n    ", colour)
        indent = 34 if beside else 4
        text.append(format.folded(claim.statement, width - 2, indent) + "\n", palette.TEXT)
    text.append(
        f"    {certificate.checkpoint}  digest {format.digest(certificate.root_digest, 24)}"
        f"  ownership {certificate.epoch}",
        palette.DIM,
    )
    return text


def rows_near(run: RunView | None, first: float, stop: float) -> Iterator[LoggedRow]:
    """Yield rows with a loss and first <= step < stop, in order."""
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


def source_past_the_seal(view: MigrationView) -> list[tuple[float, float]]:
    """Return the source's (step, loss) past the seal, as compared for continuity."""
    if view.certificate is None:
        return []
    continuity = next((claim for claim in view.certificate.claims if claim.name in COMPARED), None)
    steps = continuity.evidence.get("steps", ()) if continuity else ()
    return [(step, loss) for step, loss, *_ in steps if loss is not None]
