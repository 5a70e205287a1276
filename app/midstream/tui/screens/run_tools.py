"""Background tools of the run screen: verify and compare checkpoints or attempts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from functools import partial

from textual.message import Message
from textual.widgets import Static

from midstream.errors import DamagedError
from midstream.tui.screens import config_table
from midstream.tui.screens.checkpoint_rows import CHECKPOINT_COLUMNS, checkpoint_rows
from midstream.tui.screens.curves_screen import CURVES, CurvesScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.state.screen_state import attempt_names
from midstream.tui.state.selection import Selection
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.table import Column, Row, Table
from midstream.watch import resolved_config
from midstream.watch.snapshot import RunView

LOGS, CHECKPOINTS, INFO = "logs", "checkpoints", "info"


class RunToolsScreen(CurvesScreen):
    """Run screen base class with its blocking tools."""

    class Verified(Message):
        """A checkpoint in a place was verified; None: it could not be."""

        def __init__(self, place: str, checkpoint: str, problems: list[str] | None) -> None:
            super().__init__()
            self.place, self.checkpoint, self.problems = place, checkpoint, problems

    class Compared(Message):
        """Two checkpoints, or the configurations of two attempts, were compared."""

        def __init__(self, what: str, heading: str, lines: list[str]) -> None:
            super().__init__()
            self.what, self.heading, self.lines = what, heading, lines

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._view = CURVES
        self._verified: dict[tuple[str, str], str] = {}  # (place, checkpoint) -> state of its verification
        self._changes: list[str] | None = None  # configuration changes between two attempts

    @property
    def run_view(self) -> RunView | None:
        copies = self.screen_state.snapshot.copies(self.run_id)
        return copies[0] if copies else None

    def action_view(self, view: str) -> None:
        raise NotImplementedError

    def selection(self) -> Selection | None:
        """Return the selected checkpoint in the list of checkpoints, else the run."""
        from midstream.listing import documents

        run = self.run_view
        if run is None:
            return None
        if self._view == CHECKPOINTS:
            name = self.query_one("#checkpoint-table", Table).selected
            for checkpoint in run.checkpoints:
                if checkpoint.name == name:
                    return Selection(checkpoint.name, "checkpoint", {"run": run.run_id, **asdict(checkpoint)})
        return Selection(run.run_id, "run", documents.run_event(run).fields())

    def compared(self) -> Sequence[RunView]:
        """Return the runs whose curves are drawn beside this one's."""
        return ()

    def verified_in(self, run: RunView) -> dict[str, str]:
        """Return checkpoint -> state of its verification, of this copy of the run."""
        return {name: state for (place, name), state in self._verified.items() if place == _place(run)}

    def selected_checkpoint(self, verb: str, key: str) -> tuple[RunView, str] | None:
        """Return run and selected checkpoint; else show the list, or say it is empty."""
        run = self.run_view
        name = self.query_one("#checkpoint-table", Table).selected
        if run is None or not run.checkpoints:
            self.notify(f"{self.run_id} has no checkpoint to {verb}", markup=False)
        elif self._view != CHECKPOINTS or name is None:
            self.action_view(CHECKPOINTS)
            self.notify(f"select the checkpoint to {verb}, then press {key}")
        else:
            return run, str(name)
        return None

    def action_verify(self) -> None:
        if (selected := self.selected_checkpoint("verify", "V")) is None:
            return
        run, name = selected
        self._verified[_place(run), name] = "hashing"
        self.refresh_state()
        self.in_background(partial(self._verify, run, name))

    def _verify(self, run: RunView, name: str) -> None:
        problems = None
        try:
            problems = self.midstream.actions.verify(run, name)
        except DamagedError as error:
            problems = [error.message]
        finally:  # another error is shown, and proves nothing about the checkpoint
            self.post_message(self.Verified(_place(run), name, problems))

    def on_run_tools_screen_verified(self, event: Verified) -> None:
        state = "not checked" if event.problems is None else "damaged" if event.problems else "verified"
        self._verified[event.place, event.checkpoint] = state
        if event.problems:
            self._show_report(f"{event.checkpoint} is damaged", event.problems)
        elif event.problems is not None:
            self.notify(f"{event.checkpoint}: every object matches the manifest", markup=False)
        self.refresh_state()

    def action_diff(self) -> None:
        run = self.run_view
        if run is None:
            return
        if self._view == CHECKPOINTS:
            self._diff_checkpoints(run)
        elif self._view == CURVES and (others := self.compared()):
            config_table.show(self, [run, *others])
        else:
            self._diff_attempts(run)

    def _diff_checkpoints(self, run: RunView) -> None:
        name = self.query_one("#checkpoint-table", Table).selected
        rows = [row for row in checkpoint_rows(run, self.screen_state, self.glyphs) if row.key != name]
        if name is None or not rows:
            self.notify("no other checkpoint to compare with")
            return

        def chosen(other: Hashable) -> None:
            if other is not None:
                heading = f"{other} {self.glyphs.arrow} {name}"
                work = partial(self.midstream.actions.compare, run, str(other), str(name))
                self.in_background(lambda: self.post_message(self.Compared(CHECKPOINTS, heading, work())))

        self.app.push_screen(ChooseScreen(f"Compare {name} with", CHECKPOINT_COLUMNS, rows), chosen)

    def _diff_attempts(self, run: RunView) -> None:
        """Compare the newest attempt with the only other one, or with the one chosen."""
        attempts = [entry.attempt for entry in run.lineage.entries] if run.lineage else []
        if len(attempts) < 2:
            self.notify("no other attempt to compare with")
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
        self.app.push_screen(ChooseScreen(f"Compare attempt {newest} with", columns, rows), chosen)

    def _compare_configs(self, run: RunView, first: int, second: int) -> None:
        configs = [self.midstream.actions.config(run, attempt) for attempt in (first, second)]
        lines = [resolved_config.line(change, self.glyphs.arrow) for change in resolved_config.changes(*configs)]
        heading = f"attempt {first} {self.glyphs.arrow} attempt {second}"
        self.post_message(self.Compared(INFO, heading, lines or [resolved_config.unchanged(first, second)]))

    def on_run_tools_screen_compared(self, event: Compared) -> None:
        if event.what == INFO:
            self._changes = [event.heading, *event.lines]
            self.action_view(INFO)
        else:
            self._show_report(event.heading, event.lines)

    def _show_report(self, heading: str, lines: Sequence[str]) -> None:
        """Show a report under the table of checkpoints; esc closes it."""
        text = Text(f" {heading}\n", f"bold {palette.TEXT}")
        text.append("\n".join(f"   {line}" for line in lines), palette.DIM)
        self.query_one("#report-text", Static).update(text)
        pane = self.query_one("#checkpoint-report")
        pane.display = True
        pane.focus()


def _place(run: RunView) -> str:
    """Return where a copy of a run has its checkpoints: its store, or its host."""
    return run.store or run.host
