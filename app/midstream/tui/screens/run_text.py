"""Texts of a run: facts and info."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from midstream import format
from midstream.listing import run_facts
from midstream.listing.run_facts import hardware, latest, seconds_left, short_kind
from midstream.ownership.judgement import CLAIM, Judgement
from midstream.tui.screens.failure_text import describe_failure
from midstream.tui.state.screen_state import ScreenState, attempt_hues
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.bars import bar
from midstream.watch.loss_curve import CurveRows
from midstream.watch.run_failure import RunFailure
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.listed_checkpoint import newest_checkpoint

# What a run does before its first step, by its state.
DOING = {
    "empty": "its process has not reported yet",
    records.STARTING: "reading its configuration and its data",
    records.COMPILING: "compiling",
    records.RESTORING: "restoring its checkpoint",
    records.TRAINING: "doing its first step",
    records.WAITING: "waiting on standby for its state",
}
HEARTBEAT_WARNING = 30.0  # seconds without a heartbeat of a run on a reachable host
FIRST_METRICS = ("train/loss", "eval/loss", "grad/norm/total", "optim/learning_rate", "throughput/tokens_per_second")
NOT_DRAWN = frozenset({"global_step", "attempt", "start_number", "time", "train/loss"})


def metrics_of(run: RunView) -> list[str]:
    """Return the metrics that can be drawn, well-known ones first."""
    if isinstance(run.curve, CurveRows):
        names = set(run.curve.names())
    else:
        tail = [run.curve[index] for index in range(max(0, len(run.curve) - 64), len(run.curve))]
        names = {name for row in tail for name, value in row.items() if _is_number(value)}
    names = (names - NOT_DRAWN) | {"train/loss"}
    first = [name for name in FIRST_METRICS if name in names]
    return first + sorted(names - set(first))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def facts(run: RunView, screen_state: ScreenState, glyphs: Glyphs, width: int, started: float | None = None) -> Text:
    """Return two lines: state and progress; why it failed, metrics and checkpoint.

    Args:
        run: The run.
        screen_state: State of the fleet.
        glyphs: Glyphs to draw with.
        width: Width in cells.
        started: When this program started it, in UTC seconds; None: it did not.
    """
    just_started = started is not None and run.state == "empty"
    state = records.STARTING if just_started else run.state
    glyph, colour = signs.run_state(glyphs, state)
    stale = screen_state.is_stale(run.host)
    text = Text(no_wrap=True).append(f" {glyph} {state}", f"bold {palette.WAIT if stale else colour}")
    if (just_started or (run.running and run.state in DOING and run.state != records.TRAINING)) and not stale:
        text.append(_starting_for(run, screen_state, started), colour)
    text.append(f"  {run.host} {hardware(run, glyphs.times)}".rstrip(), palette.TEXT)
    total = run.status.num_train_steps if run.status else 0
    text.append(f"  step {format.grouped(run.step)}", palette.TEXT)
    if total and run.step is not None:
        text.append(f"/{format.grouped(total)} ", palette.DIM)
    age = screen_state.run_age(run)
    if stale:  # progress is unknown
        text.append(f" {glyphs.stale} unreachable, last report {format.age(age)} ago", palette.WAIT)
    elif total and run.step is not None:
        text.append_text(bar(glyphs, run.step / total, 10 if width < 100 else 24))
        text.append(f" {format.percent(run.step / total)}", palette.DIM)
        if (remaining := seconds_left(run)) is not None:
            text.append(f"  {format.seconds(remaining)} left", palette.DIM)
    if run.running and not stale and age is not None and age > HEARTBEAT_WARNING:
        text.append(f"  {glyphs.stale} no heartbeat for {format.age(age)}", palette.WAIT)
    text.append("\n ")
    if not run.problem and (failure := screen_state.failure(run)) is not None:
        text.append(f"{failure.reason}  ", palette.BAD)
    for name, value in (
        ("loss", format.loss(run_facts.loss(run))),
        ("lr", format.small(latest(run, "optim/learning_rate"))),
        ("tok/s", format.short(latest(run, "throughput/tokens_per_second"))),
    ):
        text.append(f"{name} ", palette.DIM)
        text.append(f"{value}  ", palette.TEXT)
    text.append("checkpoint ", palette.DIM)
    if (checkpoint := newest_checkpoint(run.usable)) is not None:
        old = f" {format.age(screen_state.now - checkpoint.created)} ago" if checkpoint.created else ""
        text.append(f"{checkpoint.name}{old}", palette.TEXT)
    else:
        text.append("none yet", palette.WAIT)
    if run.problem:
        text.append(f"  {glyphs.stale} {run.problem}", palette.WAIT)
    elif run.status and run.status.message and screen_state.failure(run) is None:
        text.append(f"  {run.status.message}", palette.DIM)
    return text


def not_reported(run_id: str, seconds: float) -> str:
    """Return the text for a run that no host has reported yet.

    The run was started ``seconds`` ago.
    """
    return f"{run_id} was started {format.age(seconds)} ago.\nIts host has not reported it yet."


def no_steps(run: RunView, screen_state: ScreenState, failure: RunFailure | None, started: float | None = None) -> str:
    """Return lines instead of a curve without points: the run's state, or its failure.

    Args:
        run: The run.
        screen_state: State of the fleet.
        failure: Of its attempt.
        started: When this program started it, in UTC seconds; None: it did not.
    """
    if failure is not None:
        ending = f" ({failure.ending})" if failure.ending else ""
        return f"{run.state} before its first step{ending}:\n{failure.message}\n2 shows its log, R starts it again."
    if run.state in records.ENDED:
        return f"{run.state} before its first step\nR starts it again."
    if screen_state.is_stale(run.host) or (not run.attempt and started is None):
        return f"no steps yet ({run.state})"
    age = _starting_for(run, screen_state, started)
    doing = DOING.get(run.state, run.state)
    return f"Starting on {run.host}{age}: {doing}.\nIts steps are drawn here; 2 shows its log."


def _starting_for(run: RunView, screen_state: ScreenState, started: float | None = None) -> str:
    """Return `` for 24s`` since the newest attempt began, or since ``started``.

    The text is empty where neither is known.
    """
    entries = run.lineage.entries if run.lineage else ()
    began = next((entry.started for entry in entries if entry.attempt == run.attempt), 0.0) or started
    return f" for {format.age(max(0.0, screen_state.now - began))}" if began else ""


def no_checkpoints(run: RunView) -> tuple[str, ...]:
    """Return the text of an empty list of checkpoints."""
    if not run.checkpoints_listed:
        return (f"listing {run.store} ...",)
    if run.store and run.problem:
        return ("checkpoints unknown:", run.problem, "The store is listed again automatically.")
    return ("no checkpoints yet.", "The run saves automatically; midstream --stop RUN saves and stops it.")


class _Page:
    """Text with headings and facts."""

    def __init__(self) -> None:
        self.text = Text()

    def heading(self, name: str) -> None:
        self.text.append(f"\n {name}\n" if self.text else f" {name}\n", f"bold {palette.TEXT}")

    def fact(self, name: str, value: str, colour: str = "") -> None:
        self.text.append(f"   {name:<11} ", palette.DIM)
        self.text.append(f"{value}\n", colour or palette.TEXT)

    def none(self, words: str) -> None:
        self.text.append(f"   {words}\n", palette.DIM)


def info(
    run: RunView, screen_state: ScreenState, glyphs: Glyphs, width: int, changes: Iterable[str] | None = None
) -> Text:
    """Return the text about a run, from lineage and fence to devices and versions.

    Args:
        run: The run.
        screen_state: State of the fleet.
        glyphs: Glyphs to draw with.
        width: Width in cells.
        changes: Configuration lines that differ between two attempts; None before a comparison.
    """
    page = _Page()
    page.heading("Lineage")
    hues = attempt_hues(run)
    for entry in run.lineage.entries if run.lineage else ():
        last = format.grouped(entry.last_step) if entry.last_step is not None else "now"
        page.text.append(f"   {glyphs.running} attempt {entry.attempt}", palette.series(hues[entry.attempt]))
        origin = f"from {entry.checkpoint}" if entry.checkpoint else "fresh"
        page.text.append(
            f"  {entry.target} {entry.devices}{glyphs.times}{entry.device_kind}  "
            f"steps {format.grouped(entry.first_step)} to {last}  {origin}\n",
            palette.TEXT,
        )
    if run.lineage is None or not run.lineage.attempts:
        page.none("none written yet")
    if (failure := screen_state.failure(run)) is not None:
        page.heading("Failure")
        page.text.append_text(describe_failure(failure, screen_state, glyphs, width)).append("\n")
    page.heading("Configuration")
    if changes is None:
        page.none("d compares two attempts")
    else:
        for line in changes:
            page.text.append(f"   {line}\n", _change_colour(line))
    page.heading("Ownership")
    if run.fence:
        page.fact("number", f"{run.fence.epoch}, owner {run.fence.owner}: the only one that may save")
        if run.fence.sealed_step is not None:
            page.fact("before", f"steps of earlier owners count up to {format.grouped(run.fence.sealed_step)}")
    else:
        page.none("none yet")
    if run.store:
        page.heading("Checkpoints")
        page.fact("stored in", run.store)
    page.heading("Copies")
    judgement = screen_state.snapshot.judgement(run.run_id)
    for copy in screen_state.snapshot.copies(run.run_id):
        age = format.age(screen_state.run_age(copy))
        unreachable = f"  {glyphs.stale} unreachable" if screen_state.is_stale(copy.host) else ""
        step = f"step {format.grouped(copy.step)}  {age} ago{unreachable}"
        page.fact(copy.host, f"{_standing(judgement, copy.host)}ownership {copy.epoch}  {copy.state}  {step}")
    _devices(page, run, screen_state, glyphs, width)
    status = run.status
    if status is not None:
        page.heading("Process")
        page.fact("pid", f"{status.pid} ({status.processes} in all), attempt {run.attempt}, ownership {status.epoch}")
        if status.root_digest:
            page.fact("digest", status.root_digest)
        page.heading("Versions")
        for name, version in sorted(status.versions.items()):
            page.fact(name, version)
    return page.text


def _devices(page: _Page, run: RunView, screen_state: ScreenState, glyphs: Glyphs, width: int) -> None:
    """Add the devices, with gauges if the host reports them."""
    page.heading("Devices")
    page.fact("reported", hardware(run, glyphs.times) or "none")
    room = max(10, min(30, width - 52))
    for member in screen_state.snapshot.members(run):
        host = screen_state.snapshot.host(member.host)
        for item in host.machine.accelerators if host and host.machine else ():
            if item.utilization is None and not item.memory_total:
                continue
            used, total = item.memory_used or 0, item.memory_total or 0
            share = item.utilization if item.utilization is not None else used / total
            page.text.append(f"   {member.host[:10]:<10} {item.index:>2} {short_kind(item.kind):<8} ", palette.DIM)
            page.text.append_text(bar(glyphs, share, room))
            words = [f"{format.percent(item.utilization)}" if item.utilization is not None else ""]
            words.append(f"{format.size(used)} of {format.size(total)}" if total else "")
            words.append(f"{item.temperature:.0f} C" if item.temperature is not None else "")
            words.append(f"{item.power:.0f} W" if item.power is not None else "")
            page.text.append(f" {'  '.join(filter(None, words))}\n", palette.TEXT)


def _change_colour(line: str) -> str:
    return {"+": palette.GOOD, "-": palette.BAD, "~": palette.ACCENT}.get(line[:1], palette.DIM)


def _standing(judgement: Judgement, host: str) -> str:
    """Return a mark for a copy that only claims the run, with the reason."""
    standing = judgement.standing(host)
    return f"claim, {standing.reason}: " if standing.kind == CLAIM else ""
