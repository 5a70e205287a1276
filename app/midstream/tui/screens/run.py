"""Run: the loss first, then the log, the checkpoints, and where it comes from."""

from __future__ import annotations

import statistics

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Static

from midstream.tui import commands, format, palette
from midstream.tui import glyphs as signs
from midstream.tui.screens import run_stop
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.rows import CHECKPOINT_COLUMNS, checkpoint_rows
from midstream.tui.widgets.bars import bar
from midstream.tui.widgets.chrome import Views
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_view import LogView
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.table import Table
from midstream.tui.world import World, attempt_names, hardware, latest
from midstream.watch import model as watch
from midstream.watch.model import RunView
from midstream_engine import records

CURVES, LOGS, CHECKPOINTS, INFO = "curves", "logs", "checkpoints", "info"
ZOOMS = (1.0, 0.5, 0.25, 0.1)
QUIET = 30.0  # seconds without a heartbeat from a run on a host that answers
FIRST_METRICS = ("train/loss", "eval/loss", "grad/norm/total", "optim/learning_rate", "throughput/tokens_per_second")
NOT_DRAWN = frozenset({"global_step", "attempt", "time", "train/loss"})


def metrics_of(run: RunView) -> list[str]:
    """The metrics that can be drawn, the well-known ones first; looked for in the last rows."""
    found: set[str] = set()
    for index in range(max(0, len(run.curve) - 64), len(run.curve)):
        found.update(
            name
            for name, value in run.curve[index].items()
            if name not in NOT_DRAWN and isinstance(value, int | float) and not isinstance(value, bool)
        )
    found.add("train/loss")
    known = [name for name in FIRST_METRICS if name in found]
    return known + sorted(found - set(known))


def seconds_left(run: RunView) -> float | None:
    """To the last step, at the pace of the last steps; None where that is not known."""
    if run.status is None or not run.status.num_train_steps or run.state != records.TRAINING:
        return None
    tail = [run.curve[index] for index in range(max(0, len(run.curve) - 32), len(run.curve))]
    durations = [row["throughput/duration"] for row in tail if "throughput/duration" in row]
    return statistics.median(durations) * (run.status.num_train_steps - run.status.step) if durations else None


class RunScreen(MidstreamScreen):
    """One run, wherever it is at the moment: the copy with the highest fence epoch."""

    SCOPE = commands.RUN
    BINDINGS = commands.bindings(commands.RUN, commands.EVERYWHERE)

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._view = CURVES
        self._metric = "train/loss"
        self._zoom = 0

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Views(self.SCOPE)
        yield CurveView(glyphs, id=CURVES)
        yield LogView(id=LOGS)
        yield Table(CHECKPOINT_COLUMNS, glyphs, id=CHECKPOINTS)
        with Pane(id=INFO):
            yield Static(id="info-text")
        yield Static(id="facts")

    def on_mount(self) -> None:
        self.action_view(CURVES)

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", self.run_id)

    @property
    def run_view(self) -> RunView | None:
        copies = self.world.snapshot.copies(self.run_id)
        return copies[0] if copies else None

    # ------------------------------------------------------------------------------------------ showing

    def show(self, world: World) -> None:
        run = self.run_view
        curve = self.query_one(CurveView)
        if run is None:
            asked = [host.name for host in world.snapshot.hosts if host.link == watch.CONNECTING]
            unknown = f"no host knows a run {self.run_id!r}; esc goes back to the list"
            curve.show((), empty=f"asking {', '.join(asked)} ..." if asked else unknown)
            self.query_one("#facts", Static).update("")
            return
        names = attempt_names(run, self.glyphs.times)
        empty = f"no steps yet ({run.state})"
        curve.show(run.curve, metric=self._metric, names=names, attempt=run.attempt, empty=empty)
        log = self.query_one(LogView)
        log.show(run.log)
        self.query_one(Table).show(
            checkpoint_rows(run, world, self.glyphs),
            empty=("no checkpoints yet.", "The run saves by itself; midstream --stop saves and stops it."),
        )
        if self._view == INFO:
            self.query_one("#info-text", Static).update(self._info(run, world))
        notes = {CHECKPOINTS: str(len(run.checkpoints)), LOGS: "" if log.following else "held"}
        self.query_one(Views).show(self._view, notes)
        self.query_one("#facts", Static).update(self._facts(run, world))

    def _facts(self, run: RunView, world: World) -> Text:
        """Two lines: where it stands, what it measures."""
        glyphs = self.glyphs
        glyph, colour = signs.run_state(glyphs, run.state)
        stale = world.is_stale(run.host)
        text = Text(f" {glyph} {run.state}", f"bold {palette.WAIT if stale else colour}", no_wrap=True)
        text.append(f"  {run.host} {hardware(run, glyphs.times)}".rstrip(), palette.TEXT)
        total = run.status.num_train_steps if run.status else 0
        text.append(f"  step {format.grouped(run.step)}", palette.TEXT)
        if total and run.step is not None:
            text.append(f"/{format.grouped(total)} ", palette.DIM)
        age = world.run_age(run)
        if stale:  # how far it is by now is not known
            text.append(f" {glyphs.stale} {run.host} silent, last word {format.age(age)} ago", palette.WAIT)
        elif total and run.step is not None:
            text.append_text(bar(glyphs, run.step / total, 10 if self.size.width < 100 else 24))
            text.append(f" {format.percent(run.step / total)}", palette.DIM)
            if (left := seconds_left(run)) is not None:
                text.append(f"  {format.seconds(left)} left", palette.DIM)
        if run.alive and not stale and age is not None and age > QUIET:
            text.append(f"  {glyphs.stale} no word for {format.age(age)}", palette.WAIT)
        text.append("\n ")
        for name, value in (
            ("loss", format.loss(run.loss)),
            ("lr", format.small(latest(run, "optim/learning_rate"))),
            ("tok/s", format.short(latest(run, "throughput/tokens_per_second"))),
        ):
            text.append(f"{name} ", palette.DIM)
            text.append(f"{value}  ", palette.TEXT)
        done = [point for point in run.checkpoints if point.complete and point.accepted]
        text.append("checkpoint ", palette.DIM)
        if done:
            newest = max(done, key=lambda point: (point.step, point.attempt))
            old = f" {format.age(world.now - newest.created)} ago" if newest.created else ""
            text.append(f"{newest.name}{old}", palette.TEXT)
        else:
            text.append("none yet", palette.WAIT)
        if run.trouble:
            text.append(f"  {glyphs.stale} {run.trouble}", palette.WAIT)
        elif run.status and run.status.message:
            text.append(f"  {run.status.message}", palette.BAD if run.state == records.FAILED else palette.DIM)
        elif run.state == "lost":
            text.append("  its process is gone without a word", palette.BAD)
        return text

    def _info(self, run: RunView, world: World) -> Text:
        glyphs = self.glyphs
        text = Text()

        def heading(name: str) -> None:
            text.append(f"\n {name}\n" if text else f" {name}\n", f"bold {palette.TEXT}")

        def fact(name: str, value: str, colour: str = palette.TEXT) -> None:
            text.append(f"   {name:<11} ", palette.DIM)
            text.append(f"{value}\n", colour)

        heading("Lineage")
        for number, entry in enumerate(run.lineage.entries if run.lineage else ()):
            last = format.grouped(entry.last_step) if entry.last_step is not None else "now"
            text.append(f"   {glyphs.running} attempt {entry.attempt}", palette.series(number))
            origin = f"from {entry.checkpoint}" if entry.checkpoint else "fresh"
            text.append(
                f"  {entry.target} {entry.devices}{glyphs.times}{entry.device_kind}  "
                f"steps {format.grouped(entry.first_step)} to {last}  {origin}\n",
                palette.TEXT,
            )
        if run.lineage is None or not run.lineage.attempts:
            text.append("   none written yet\n", palette.DIM)
        heading("Fence")
        if run.fence:
            fact("epoch", f"{run.fence.epoch}, held by {run.fence.holder}")
            if run.fence.sealed_step is not None:
                fact("sealed", f"everything before counts up to step {format.grouped(run.fence.sealed_step)}")
        else:
            text.append("   none yet\n", palette.DIM)
        heading("Copies")
        for copy in world.snapshot.copies(run.run_id):
            age = format.age(world.run_age(copy))
            silent = f"  {glyphs.stale} silent" if world.is_stale(copy.host) else ""
            fact(copy.host, f"epoch {copy.epoch}  {copy.state}  step {format.grouped(copy.step)}  {age} ago{silent}")
        status = run.status
        if status is not None:
            heading("Process")
            fact("devices", hardware(run, glyphs.times) or "none reported")
            fact("pid", f"{status.pid} ({status.processes} in all), attempt {run.attempt}, epoch {status.epoch}")
            if status.root_digest:
                fact("digest", status.root_digest)
            heading("Versions")
            for name, version in sorted(status.versions.items()):
                fact(name, version)
        return text

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in (CURVES, LOGS, CHECKPOINTS, INFO):
            self.query_one(f"#{name}").display = name == view
        if view == CURVES:
            self.set_focus(None)
        else:
            self.query_one(f"#{view}").focus()
        self.refresh_world()

    def action_metric(self, by: int) -> None:
        run = self.run_view
        if run is None:
            return
        names = metrics_of(run)
        place = names.index(self._metric) if self._metric in names else 0
        self._metric = names[(place + by) % len(names)]
        self.action_view(CURVES)

    def action_zoom(self) -> None:
        self._zoom = (self._zoom + 1) % len(ZOOMS)
        self.query_one(CurveView).zoom(ZOOMS[self._zoom])
        self.action_view(CURVES)

    def action_migrate(self) -> None:
        if self.run_view is not None and not self.refused():
            self.midstream.open_wizard(self.run_id)

    def action_stop(self) -> None:
        run = self.run_view
        if run is not None and not self.refused():
            run_stop.ask(self, run)
