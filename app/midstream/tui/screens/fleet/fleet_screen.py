"""Fleet screen: hosts, runs and migrations, with a preview of the selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from midstream.listing.fleet_fields import CONFIG
from midstream.tui import commands
from midstream.tui.screens.fleet.filter_line import FilterLine
from midstream.tui.screens.fleet.list_screen import RUNS, ListScreen
from midstream.tui.screens.fleet.table_rows import LISTS
from midstream.tui.state.screen_state import ScreenState, attempt_hues, attempt_names
from midstream.tui.state.selection import MAX_COMPARED, Selection
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text, cut_to
from midstream.tui.widgets.chrome import Hints, Rule, Views
from midstream.tui.widgets.table import Heading, Table
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import RunView

if TYPE_CHECKING:
    from midstream.tui.widgets.curve import CurveView

HOSTS, MIGRATIONS = "hosts", "migrations"


class FleetScreen(ListScreen):
    """The first screen."""

    SCOPE = commands.FLEET
    BINDINGS = commands.bindings(commands.FLEET, commands.EVERYWHERE)

    def __init__(self) -> None:
        super().__init__()
        self._marked: dict[str, None] = {}  # runs, in the order of marking

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Views(self.SCOPE)
        for name, listing in LISTS.items():
            yield Table(listing.columns, glyphs, id=name)
        yield FilterLine(glyphs, id="filter")
        with Vertical(id="preview"):
            yield Rule("", glyphs)
            yield Static(id="preview-text")

    def on_mount(self) -> None:
        saved = self.midstream.saved_layout
        if saved.problem:
            self.notify(saved.problem, title="saved layout", severity="warning")
            saved.problem = ""
        self.check_saved_filters()
        self.action_view(saved.view if saved.view in LISTS else RUNS)

    def crumbs(self) -> tuple[str, ...]:
        return ({HOSTS: "Hosts", RUNS: "Runs", MIGRATIONS: "Migrations"}[self._view],)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:
        items = {HOSTS: screen_state.snapshot.hosts, MIGRATIONS: screen_state.migrations}
        counts = {HOSTS: len(items[HOSTS]), RUNS: screen_state.snapshot.run_count, MIGRATIONS: len(items[MIGRATIONS])}
        items_in_view = self.items_in_view(items.get(self._view, ()), screen_state)
        empty = self.no_match_text() if counts[self._view] else self._empty_text(self._view, screen_state)
        self.show_rows(items_in_view, screen_state, empty, self._marked if self._view == RUNS else ())
        self._hint()
        notes = {view: str(count) for view, count in counts.items()}
        notes[self._view] = self.count_text(items_in_view.count, counts[self._view])
        self.query_one(Views).show(self._view, notes)
        self._preview(screen_state)

    def _hint(self) -> None:
        """Hide hints that do not apply."""
        self.query_one(Hints).hide(*([] if self.list_layout.filter else ["back"]))

    def _empty_text(self, view: str, screen_state: ScreenState) -> tuple[str, ...]:
        """Return the text of an empty list: what to do next."""
        if not screen_state.snapshot.hosts:
            return (
                "no hosts in the fleet file.",
                "Run:" if self.midstream.readonly else "Press a to add hosts of ~/.ssh/config, or run:",
                "  midstream --init",
                "A demo on this machine:",
                "  midstream --demo",
            )
        if view == MIGRATIONS:
            start = "Press 2, select a run, press m. Nothing changes before you confirm."
            return ("no migrations yet.",) if self.midstream.readonly else ("no migrations yet.", start)
        connecting = [host.name for host in screen_state.snapshot.hosts if host.link == watch.CONNECTING]
        connecting_text = (f"connecting to {', '.join(connecting)} ...",) if connecting else ()
        live = next((host.name for host in screen_state.snapshot.hosts if host.link == watch.LIVE), None)
        if connecting and live is None:
            return connecting_text
        return (
            "no runs yet. Press L to start one, or type:",
            f"  midstream --launch CONFIG --on {live or screen_state.snapshot.hosts[0].name}",
            "Runs under each host's root are found automatically.",
            *connecting_text,
        )

    def _preview(self, screen_state: ScreenState) -> None:

        key = self.table().selected
        pane, rule = self.query_one("#preview"), self.query_one(Rule)
        text = self.query_one("#preview-text", Static)
        pane.display = key is not None and self.size.height >= 18
        run = self._selected_run() if self._view == RUNS else None
        failure = screen_state.failure(run) if run is not None else None
        text.display = self._view != RUNS or failure is not None
        for shown in self.query("#preview-curve"):
            shown.display = not text.display
        if key is None:
            return
        if failure is not None:
            from midstream.tui.screens.failure_text import describe_failure

            rule.show(str(key), "enter opens its log")
            height = max(3, pane.size.height - 1)
            words = describe_failure(failure, screen_state, self.glyphs, self.size.width, height)
            self.update_text("#preview-text", words)
        elif self._view == RUNS:
            if run is not None:
                from midstream.tui.widgets.plot import Drawn

                rule.show(run.run_id, "enter opens")
                curve = self._curve()
                names = attempt_names(run, self.glyphs.times)
                series, _ = self.midstream.series_cache.series(run.key, run.curve, curve.metric)
                drawn = Drawn(series, hues=attempt_hues(run))
                curve.draw((drawn,), metric=curve.metric, names=names, empty=f"no steps yet ({run.state})")
        elif self._view == HOSTS:
            from midstream.tui.screens.fleet.host_text import describe_host, utilization_of

            host = screen_state.snapshot.host(str(key))
            rule.show(str(key))
            history = utilization_of(screen_state.snapshot.system.get(str(key)))
            words = describe_host(host, self.glyphs, self.size.width, screen_state.now, history) if host else Text()
            self.update_text("#preview-text", cut_to(words, pane.size.height - 1, "v, then 2 shows all"))
        else:
            view = screen_state.migration(str(key))
            rule.show(str(key), "enter opens")
            if view is not None and view.damage:
                words = "".join(f"  {self.glyphs.failed} {line}\n" for line in view.damage)
                self.update_text("#preview-text", Text(words.rstrip(), palette.BAD, no_wrap=True))
            elif view is not None:
                from midstream.tui.widgets.bars import downtime

                self.update_text(
                    "#preview-text",
                    downtime(self.glyphs, view.downtime, view.predicted_seconds, self.size.width - 2),
                )

    def _curve(self) -> CurveView:
        """Return the curve of the preview: it is built for the first run that is selected."""
        from midstream.tui.widgets.curve import CurveView

        if not self.query("#preview-curve"):
            self.query_one("#preview").mount(CurveView(self.glyphs, id="preview-curve"), before="#preview-text")
        return self.query_one("#preview-curve", CurveView)

    def selection(self) -> Selection | None:
        from midstream.listing import documents

        key, state = self.table().selected, self.screen_state
        name = str(key)
        if key is not None and self._view == HOSTS and (host := state.snapshot.host(name)) is not None:
            return Selection(name, "host", documents.host_event(host).fields())
        if key is not None and self._view == MIGRATIONS and (view := state.migration(name)) is not None:
            return Selection(name, "migration", documents.migration_event(view).fields())
        run = self._selected_run() if self._view == RUNS else None
        return Selection(run.run_id, "run", documents.run_event(run).fields()) if run is not None else None

    def _selected_run(self) -> RunView | None:
        key = self.table(RUNS).selected
        copies = self.screen_state.snapshot.copies(str(key)) if key is not None else ()
        return copies[0] if copies else None

    def on_table_moved(self, event: Table.Moved) -> None:
        if event.table is self.table():
            self.midstream.series_cache.begin()
            self._preview(self.screen_state)
            self.continue_reading()

    async def on_table_chosen(self) -> None:
        self.action_open()

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = self.midstream.saved_layout.view = view
        for name in (HOSTS, RUNS, MIGRATIONS):
            self.table(name).display = name == view
        self.show_filter_line()
        self.table().focus()
        self.refresh_state()

    def select(self, view: str, key: str) -> None:
        """Show a list with one of its items selected; a filter that hides it is cleared."""
        self.action_view(view)
        if key not in self.table().keys:
            self.set_filter("")
            self.refresh_state()
        self.table().select(key)

    def action_open(self) -> None:
        key = self.table().selected
        if self._view == RUNS and key is not None:
            from midstream.tui.screens.run_screen import RunScreen

            run = self._selected_run()
            others = [name for name in self._marked if name != key]
            failed = run is not None and self.screen_state.failure(run) is not None
            self._marked.clear()  # marks end with the action that they were for
            self.app.push_screen(RunScreen(str(key), others, at_failure=failed and not others))
        elif self._view == MIGRATIONS and key is not None:
            from midstream.tui.screens.migration_screen import MigrationScreen

            self.app.push_screen(MigrationScreen(str(key)))
        elif self._view == HOSTS and key is not None:
            from midstream.listing.conditions import quoted

            self.midstream.saved_layout.list_of(RUNS).filter = f"host={quoted(str(key))}"
            self._written.pop(RUNS, None)
            self.action_view(RUNS)

    def action_log(self) -> None:
        """Open the log of the selected run."""
        from midstream.tui.screens.run_screen import LOGS, RunScreen

        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run whose log to read")
        else:
            failed = self.screen_state.failure(run) is not None
            self.app.push_screen(RunScreen(run.run_id, view=LOGS, at_failure=failed))

    def choose_config_values(self) -> None:
        from midstream.tui.screens.fleet import config_columns

        run, layout = self._selected_run(), self.list_layout
        if run is None or not run.attempt:
            self.notify("select a run that has started: its configuration names the values")
            return
        listed = layout.columns or [column.title for column in self.listing.chosen([])]
        shown = [title for title in listed if title.startswith(CONFIG)]

        def chosen(names: list[str]) -> None:
            layout.columns = [*(title for title in listed if not title.startswith(CONFIG)), *names]
            self._save()

        config_columns.choose(self, run, shown, chosen)

    def action_migrate(self) -> None:
        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to migrate")
        elif not self.refuse_readonly():
            self.midstream.open_wizard(run.run_id)

    def action_launch(self) -> None:
        """Start a run: on the selected host, where hosts are listed."""
        from midstream.tui.screens import launch_form

        if not self.refuse_readonly():
            key = self.table(HOSTS).selected if self._view == HOSTS else None
            launch_form.ask_launch(self, str(key) if key is not None else "")

    def action_start_again(self) -> None:
        from midstream.tui.screens import launch_form

        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to start again")
        elif not self.refuse_readonly():
            launch_form.offer_start_again(self, run)

    def action_edit(self) -> None:
        from midstream.tui.screens import label_form

        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to name")
        elif not self.refuse_readonly():
            label_form.ask(self, run.run_id)

    def action_undo(self) -> None:
        from midstream.tui.screens import label_form

        if not self.refuse_readonly():
            label_form.undo(self)

    def action_leftovers(self) -> None:
        from midstream.tui.screens.fleet.leftovers_screen import LeftoversScreen

        self.app.push_screen(LeftoversScreen())

    def action_verify(self) -> None:
        """Verify all checkpoints of the marked runs, or of all runs, after confirmation.

        In the list of migrations, verify all certificates.
        """
        from midstream.tui.screens.fleet import verify_screen
        from midstream.tui.screens.fleet.verifications import CertificateVerifications, CheckpointVerifications

        actions, state = self.midstream.actions, self.screen_state
        if self._view == MIGRATIONS:
            verify_screen.ask(self, "Migrations", CertificateVerifications(actions, state.migrations))
        else:
            runs = self._marked_runs() or state.snapshot.current()
            verify_screen.ask(self, "Runs", CheckpointVerifications(actions, runs))
            self._marked.clear()

    def _marked_runs(self) -> list[RunView]:
        """Return the marked runs that still exist."""
        marked = [self.screen_state.snapshot.copies(name) for name in self._marked]
        return [copies[0] for copies in marked if copies]

    def action_stop(self) -> None:
        from midstream.tui.screens import stop_run

        if self._view == RUNS and len(marked := self._marked_runs()) > 1:
            if not self.refuse_readonly():
                stop_run.ask_many(self, marked)
                self._marked.clear()
            return
        run = self._selected_run() if self._view == RUNS else None
        if run is None:
            self.notify("press 2 and select the run to stop")
        elif not self.refuse_readonly():
            stop_run.ask(self, run)

    def action_curves(self) -> None:
        """Open the system metrics of the selected host, or of the selected run's host."""
        from midstream.tui.screens.fleet.host_screen import HostScreen

        key = self.table(HOSTS).selected if self._view == HOSTS else None
        run = self._selected_run() if self._view == RUNS else None
        host = str(key) if key is not None else run.host if run is not None else None
        if host is None:
            self.notify("press 1 and select the host")
        else:
            self.app.push_screen(HostScreen(host))

    def action_shell(self) -> None:
        from midstream.tui.screens.fleet import shell_view

        key = self.table(HOSTS).selected if self._view == HOSTS else None
        run = self._selected_run() if self._view == RUNS else None
        host = str(key) if key is not None else run.host if run is not None else None
        if host is None:
            self.notify("press 1 and select the host to open a shell on")
        elif not self.refuse_readonly():
            shell_view.open_on(self, host)

    def action_mark(self) -> None:
        key = self.table().selected
        if self._view != RUNS or key is None:
            self.notify("press 2: only runs can be marked")
            return
        if str(key) in self._marked:
            del self._marked[str(key)]
        else:
            self._marked[str(key)] = None
        self.table().action_cursor(1)
        self.refresh_state()

    def action_mark_all(self) -> None:
        """Mark the runs that the list shows; where all of them are marked, none."""
        if self._view != RUNS:
            self.notify("press 2: only runs can be marked")
            return
        shown = [str(key) for key in self.table().keys if not isinstance(key, Heading)]
        if len(shown) > MAX_COMPARED:
            self.notify(f"{len(shown)} runs are shown, at most {MAX_COMPARED} are marked: / filters the list")
            return
        self._marked = {} if set(shown) <= self._marked.keys() else dict.fromkeys(shown)
        self.refresh_state()

    def action_unmark(self) -> None:
        self._marked.clear()
        self.refresh_state()

    def action_slices(self) -> None:
        from midstream.tui.screens.slices_screen import SlicesScreen

        self.app.push_screen(SlicesScreen())

    def action_costs(self) -> None:
        from midstream.tui.screens.fleet.costs_screen import CostsScreen

        self.app.push_screen(CostsScreen())

    def action_add_hosts(self) -> None:
        from midstream.tui.screens.fleet import add_hosts

        if not self.refuse_readonly():
            add_hosts.offer(self)
