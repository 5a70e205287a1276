"""Looking closer at a run: checkpoints hashed and compared, configurations of attempts compared, all of the log."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from textual.message import Message
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.tui import palette
from midstream.tui.screen_state import attempt_names
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.fleet.table_rows import CHECKPOINT_COLUMNS, checkpoint_rows
from midstream.tui.styled_text import Text
from midstream.tui.widgets.log_view import LogView
from midstream.tui.widgets.table import Column, Row, Table
from midstream.watch.snapshot import RunView

CURVES, LOGS, CHECKPOINTS, INFO = "curves", "logs", "checkpoints", "info"


class CloserScreen(MidstreamScreen):
    """What a run's screen finds out when it is asked to, beside the screen: it blocks."""

    class Verified(Message):
        """A checkpoint was hashed."""

        def __init__(self, checkpoint: str, problems: list[str]) -> None:
            super().__init__()
            self.checkpoint, self.problems = checkpoint, problems

    class Compared(Message):
        """Two checkpoints, or the configurations of two attempts, were compared."""

        def __init__(self, what: str, heading: str, lines: list[str]) -> None:
            super().__init__()
            self.what, self.heading, self.lines = what, heading, lines

    class LogRead(Message):
        """All of the log has come."""

        def __init__(self, lines: list[str]) -> None:
            super().__init__()
            self.lines = lines

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._view = CURVES
        self._verified: dict[str, str] = {}  # checkpoint -> what hashing it has found
        self._changes: list[str] | None = None  # of the configuration, between two attempts

    @property
    def run_view(self) -> RunView | None:
        copies = self.world.snapshot.copies(self.run_id)
        return copies[0] if copies else None

    def action_view(self, view: str) -> None:
        raise NotImplementedError

    def action_verify(self) -> None:
        run = self.run_view
        name = self.query_one("#checkpoint-table", Table).selected
        if run is None or self._view != CHECKPOINTS or name is None:
            self.notify("press 3 and select the checkpoint to verify")
            return
        self._verified[str(name)] = "hashing"
        self.refresh_world()
        self.in_background(partial(self._verify, run, str(name)))

    def _verify(self, run: RunView, name: str) -> None:
        try:
            problems = self.midstream.actions.verify(run, name)
        except MidstreamError as error:
            problems = [error.message]
        self.post_message(self.Verified(name, problems))

    def on_closer_screen_verified(self, event: Verified) -> None:
        self._verified[event.checkpoint] = "damaged" if event.problems else "whole"
        if event.problems:
            self._tell(f"{event.checkpoint} is damaged", event.problems)
        else:
            self.notify(f"{event.checkpoint}: every object is what the manifest says", markup=False)
        self.refresh_world()

    def action_diff(self) -> None:
        run = self.run_view
        if run is None:
            return
        if self._view == CHECKPOINTS:
            self._diff_checkpoints(run)
        else:
            self._diff_attempts(run)

    def _diff_checkpoints(self, run: RunView) -> None:
        name = self.query_one("#checkpoint-table", Table).selected
        rows = [row for row in checkpoint_rows(run, self.world, self.glyphs) if row.key != name]
        if name is None or not rows:
            self.notify("there is nothing to compare it with: the run has one checkpoint")
            return

        def chosen(other: Hashable) -> None:
            if other is not None:
                heading = f"{other} {self.glyphs.arrow} {name}"
                work = partial(self.midstream.actions.compare, run, str(other), str(name))
                self.in_background(lambda: self.post_message(self.Compared(CHECKPOINTS, heading, work())))

        self.app.push_screen(ChooseScreen(f"Compare {name} with", CHECKPOINT_COLUMNS, rows), chosen)

    def _diff_attempts(self, run: RunView) -> None:
        """The newest attempt with another; with the one before where there are two alone."""
        attempts = [entry.attempt for entry in run.lineage.entries] if run.lineage else []
        if len(attempts) < 2:
            self.notify("the run has had one attempt: there is no other configuration")
            return
        newest = attempts[-1]

        def chosen(other: Hashable) -> None:
            if isinstance(other, int):
                self.in_background(partial(self._compare_configs, run, other, newest))

        if len(attempts) == 2:
            chosen(attempts[0])
            return
        names = attempt_names(run, self.glyphs.times)
        rows = [Row(number, (f"attempt {number}", names.get(number, ""))) for number in reversed(attempts[:-1])]
        columns = (Column("ATTEMPT"), Column("ON"))
        self.app.push_screen(ChooseScreen(f"Configuration of attempt {newest} against", columns, rows), chosen)

    def _compare_configs(self, run: RunView, first: int, second: int) -> None:
        from midstream.watch import resolved_config

        sides = [self.midstream.actions.config(run, attempt) for attempt in (first, second)]
        found = [resolved_config.line(change, self.glyphs.arrow) for change in resolved_config.changes(*sides)]
        heading = f"attempt {first} {self.glyphs.arrow} attempt {second}"
        self.post_message(self.Compared(INFO, heading, found or ["the same configuration"]))

    def on_closer_screen_compared(self, event: Compared) -> None:
        if event.what == INFO:
            self._changes = [event.heading, *event.lines]
            self.action_view(INFO)
        else:
            self._tell(event.heading, event.lines or ["the same state: every array is equal"])

    def _tell(self, heading: str, lines: Sequence[str]) -> None:
        """A report under the table of checkpoints; esc closes it."""
        text = Text(f" {heading}\n", f"bold {palette.TEXT}")
        text.append("\n".join(f"   {line}" for line in lines), palette.DIM)
        self.query_one("#report-text", Static).update(text)
        pane = self.query_one("#checkpoint-report")
        pane.display = True
        pane.focus()

    def action_whole_log(self) -> None:
        """All of the log, from its host."""
        run = self.run_view
        if run is None:
            return
        self.notify(f"reading the log from {run.host}", timeout=3)
        actions = self.midstream.actions
        self.in_background(lambda: self.post_message(self.LogRead(actions.read_log(run))))

    def on_closer_screen_log_read(self, event: LogRead) -> None:
        view = self.query_one(LogView)
        view.following = False
        view.replace(event.lines)
        view.action_scroll_home()
        self.notify(f"{len(event.lines):,} lines")
        self.action_view(LOGS)
