"""Fleet: hosts, runs and migrations, and a look at the one that is selected."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from midstream.tui import commands, palette
from midstream.tui.screen_state import World, attempt_hues, attempt_names
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet import shell_view, table_rows
from midstream.tui.screens.run import stop_run
from midstream.tui.styled_text import Text
from midstream.tui.widgets.bars import downtime
from midstream.tui.widgets.chrome import Hints, Rule, Views
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.table import Table
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import RunView

HOSTS, RUNS, MIGRATIONS = "hosts", "runs", "migrations"


LISTS = {HOSTS: table_rows.HOSTS, RUNS: table_rows.RUNS, MIGRATIONS: table_rows.MIGRATIONS}


class FleetScreen(MidstreamScreen):
    """The first screen."""

    SCOPE = commands.FLEET
    BINDINGS = commands.bindings(commands.FLEET, commands.EVERYWHERE)

    def __init__(self) -> None:
        super().__init__()
        self._view = RUNS
        self._filter = ""
        self._marked: dict[str, None] = {}  # runs, in the order in which they were marked

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Views(self.SCOPE)
        for name, listing in LISTS.items():
            yield Table(listing.columns, glyphs, id=name)
        yield Input(id="filter", placeholder="word  !word  state:failed  loss<2.5", compact=True)
        with Vertical(id="preview"):
            yield Rule("", glyphs)
            yield CurveView(glyphs, id="preview-curve")
            yield Static(id="preview-text")

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.action_view(self.midstream.kept.view)

    def crumbs(self) -> tuple[str, ...]:
        return ({HOSTS: "Hosts", RUNS: "Runs", MIGRATIONS: "Migrations"}[self._view],)

    def table(self, view: str = "") -> Table:
        return self.query_one(f"#{view or self._view}", Table)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, world: World) -> None:
        items = {
            HOSTS: world.snapshot.hosts,
            RUNS: world.runs_in_order if self._view == RUNS else (),
            MIGRATIONS: world.migrations,
        }
        listing, sort = LISTS[self._view], self._sort
        found = table_rows.listed(listing, items[self._view], world, self._filter, sort)
        self.table().show(
            table_rows.rows_of(listing, found, world, self.glyphs),
            empty=(
                (f"nothing matches {self._filter!r}", "esc clears the filter")
                if items[self._view]
                else self._nothing(self._view, world)
            ),
            sort=sort,
            marked=self._marked if self._view == RUNS else (),
        )
        self._hint()
        counts = {HOSTS: len(items[HOSTS]), RUNS: world.snapshot.run_count, MIGRATIONS: len(items[MIGRATIONS])}
        notes = {view: str(count) for view, count in counts.items()}
        if self._filter:
            notes[self._view] = f"{len(found)} of {counts[self._view]}"
        self.query_one(Views).show(self._view, notes)
        self._preview(world)

    @property
    def _sort(self) -> tuple[int, bool] | None:
        kept = self.midstream.kept.sorts.get(self._view)
        return (kept[0], bool(kept[1])) if kept and kept[0] < len(LISTS[self._view].columns) else None

    def _hint(self) -> None:
        """What has no meaning at the moment is no hint."""
        hidden = [] if self._filter else ["back"]
        if self._view != RUNS:
            hidden += ["mark", "stop", "migrate"]
        self.query_one(Hints).hide(*hidden)

    def _nothing(self, view: str, world: World) -> tuple[str, ...]:
        """What to do next where a list is empty."""
        if not world.snapshot.hosts:
            return (
                "no hosts: the fleet file names none.",
                "Press a to choose some from ~/.ssh/config. The same on the command line:",
                "  midstream --init",
                "This is a fleet on this machine alone, with a run:",
                "  midstream --demo",
            )
        if view == MIGRATIONS:
            return ("no migrations yet.", "Press 2, select a run, press m: nothing changes before you confirm it.")
        asked = [host.name for host in world.snapshot.hosts if host.link == watch.CONNECTING]
        asking = (f"asking {', '.join(asked)} ...",) if asked else ()
        live = next((host.name for host in world.snapshot.hosts if host.link == watch.LIVE), None)
        if asked and live is None:
            return asking
        return (
            "no runs yet. This starts one:",
            f"  midstream --launch CONFIG --on {live or world.snapshot.hosts[0].name}",
            "Runs are found by themselves under each host's root.",
            *asking,
        )

    def _preview(self, world: World) -> None:
        key = self.table().selected
        pane, rule = self.query_one("#preview"), self.query_one(Rule)
        curve, text = self.query_one("#preview-curve", CurveView), self.query_one("#preview-text", Static)
        pane.display = key is not None and self.size.height >= 18
        curve.display, text.display = self._view == RUNS, self._view != RUNS
        if key is None:
            return
        if self._view == RUNS:
            run = self._selected_run()
            if run is not None:
                rule.show(run.run_id, "enter opens it")
                names = attempt_names(run, self.glyphs.times)
                series, _ = self.midstream.book.series(run.key, run.curve, curve.metric)
                drawn = Drawn(series, hues=attempt_hues(run))
                curve.draw((drawn,), metric=curve.metric, names=names, empty=f"no steps yet ({run.state})")
        elif self._view == HOSTS:
            host = world.snapshot.host(str(key))
            rule.show(str(key))
            history = self.midstream.history.get(str(key), ())
            words = table_rows.describe_host(host, world, self.glyphs, self.size.width, history) if host else Text()
            self.put("#preview-text", words)
        else:
            view = world.migration(str(key))
            rule.show(str(key), "enter opens it")
            if view is not None and view.damage:
                words = "".join(f"  {self.glyphs.failed} {line}\n" for line in view.damage)
                self.put("#preview-text", Text(words.rstrip(), palette.BAD, no_wrap=True))
            elif view is not None:
                self.put(
                    "#preview-text",
                    downtime(self.glyphs, view.downtime, view.predicted_seconds, self.size.width - 2),
                )

    def _selected_run(self) -> RunView | None:
        key = self.table(RUNS).selected
        copies = self.world.snapshot.copies(str(key)) if key is not None else ()
        return copies[0] if copies else None

    def on_table_moved(self, event: Table.Moved) -> None:
        if event.table is self.table():
            self.midstream.book.begin()
            self._preview(self.world)
            self.read_on()

    def on_table_headed(self, event: Table.Headed) -> None:
        sort = self._sort
        self._order(event.column, sort is not None and sort[0] == event.column and not sort[1])

    async def on_table_chosen(self, event: Table.Chosen) -> None:
        self.action_open()

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = self.midstream.kept.view = view
        for name in (HOSTS, RUNS, MIGRATIONS):
            self.table(name).display = name == view
        self.table().focus()
        self.refresh_world()

    def action_open(self) -> None:
        from midstream.tui.screens.migration.migration_screen import MigrationScreen
        from midstream.tui.screens.run.run_screen import RunScreen

        key = self.table().selected
        if self._view == RUNS and key is not None:
            self.app.push_screen(RunScreen(str(key), [run for run in self._marked if run != key]))
        elif self._view == MIGRATIONS and key is not None:
            self.app.push_screen(MigrationScreen(str(key)))
        elif self._view == HOSTS and key is not None:
            self._filter = f"host={key}"
            self.query_one("#filter", Input).value = self._filter
            self.query_one("#filter").display = True
            self.action_view(RUNS)

    def action_migrate(self) -> None:
        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to move")
        elif not self.refused():
            self.midstream.open_wizard(run.run_id)

    def action_stop(self) -> None:
        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to stop")
        elif not self.refused():
            stop_run.ask(self, run)

    def action_shell(self) -> None:
        key = self.table(HOSTS).selected if self._view == HOSTS else None
        run = self._selected_run() if self._view == RUNS else None
        host = str(key) if key is not None else run.host if run is not None else None
        if host is None:
            self.notify("press 1 and select the host to open a shell on")
        elif not self.refused():
            shell_view.open_on(self, host)

    def action_mark(self) -> None:
        key = self.table().selected
        if self._view != RUNS or key is None:
            self.notify("press 2: runs are what can be marked")
            return
        if str(key) in self._marked:
            del self._marked[str(key)]
        else:
            self._marked[str(key)] = None
        self.table().action_cursor(1)
        self.refresh_world()

    def action_unmark(self) -> None:
        self._marked.clear()
        self.refresh_world()

    def action_sort(self) -> None:
        """By each column in turn, then in the usual order again."""
        columns = LISTS[self._view].columns
        column = self._sort[0] + 1 if self._sort else 0
        self._order(column if column < len(columns) else None, False)

    def action_reverse(self) -> None:
        column, downwards = self._sort or (0, False)
        self._order(column, not downwards)

    def _order(self, column: int | None, downwards: bool) -> None:
        sorts = self.midstream.kept.sorts
        if column is None:
            sorts.pop(self._view, None)
        else:
            sorts[self._view] = [column, int(downwards)]
        self.midstream.kept.save()
        self.refresh_world()

    def action_slices(self) -> None:
        from midstream.tui.screens.slices.slices_screen import SlicesScreen

        self.app.push_screen(SlicesScreen())

    def action_set_up(self) -> None:
        from midstream.tui.screens.fleet.add_hosts import offer

        if not self.refused():
            offer(self)

    # ------------------------------------------------------------------------------------------ the filter

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        self.set_focus(box)  # at once: the next key is for it

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.strip()
        self.refresh_world()

    def on_input_submitted(self) -> None:
        self.query_one("#filter").display = bool(self._filter)
        self.table().focus()

    def action_back(self) -> None:
        """The first screen has nothing behind it: esc clears the filter."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        self.table().focus()
