"""One redrawn line at the terminal for a migration that runs.

It has a bar, the share that is done, the time left, what happens now, and the step of the run.
"""

from __future__ import annotations

import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from midstream import format
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.stages import shown_stage
from midstream.printable import printable

BAR_CELLS = 20
REFRESHES = 4  # per second


class LiveLine:
    """The last line of a terminal, redrawn while a migration runs. A context manager.

    Lines that stay are printed above it.
    """

    def __init__(self, directory: MigrationDirectory, terminal: TextIO) -> None:
        self._directory = directory
        self._copied = ""
        console = Console(file=terminal, highlight=False, markup=False, emoji=False)
        self._live = Live(
            get_renderable=self._line, console=console, refresh_per_second=REFRESHES, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def __enter__(self) -> LiveLine:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, line: str, style: str = "") -> None:
        """Print a line that stays."""
        self._live.console.print(Text(printable(line), style=style), soft_wrap=True)

    def show(self, event: Event) -> None:
        """Show an event: the end of a phase and a note stay; the rest is in the line."""
        if event.event == "phase" and event.state == "progress":
            done, total = int(event.detail["bytes_done"]), int(event.detail["bytes_total"])
            rate = format.size(event.detail.get("bytes_per_second", 0))
            self._copied = f"{format.size(done)} of {format.size(total)}, {rate}/s" if done < total else ""
        elif event.event == "phase":
            self._copied = ""
            if event.state not in ("started", "done"):
                self.say(f"{event.phase}: {event.state}" + (f": {event.message}" if event.message else ""), "yellow")
        elif event.event == "note" and event.message:
            self.say(f"    {event.message}", "dim")

    def _line(self) -> Table:
        view = self._directory.view()
        remaining = view.remaining(time.time())
        share = _share(view, 0.0 if remaining is None else remaining.seconds)
        words = [what for what in (_stage(view), self._copied, self._directory.live_step()) if what]
        if remaining is not None:
            words.insert(1, f"{remaining.text()} left")
        row = Table.grid(padding=(0, 1))
        for _ in range(2):
            row.add_column(no_wrap=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(
            ProgressBar(total=1.0, completed=share, width=BAR_CELLS),
            Text(f"{100 * share:3.0f}%", style="bold"),
            Text(printable(" · ".join(words))),
        )
        return row


def _share(view: MigrationView, remaining: float) -> float:
    """Return the share of the migration's expected time that has passed, 0 to 1."""
    times = view.stage_times
    passed = sum(times.measured.values()) + (max(0.0, time.time() - times.since) if times.current else 0.0)
    return passed / (passed + remaining) if passed + remaining > 0 else 0.0


def _stage(view: MigrationView) -> str:
    return shown_stage(view.stage_times.current) if view.stage_times.current else view.phase
