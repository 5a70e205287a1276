"""TPU slices of the fleet file's projects and zones."""

from __future__ import annotations

from dataclasses import asdict

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream import format
from midstream.errors import MidstreamError
from midstream.listing import documents
from midstream.operations.create_target import CreatableTarget
from midstream.operations.list_slices import SliceListing, remarks
from midstream.providers.provider import Slice, SliceStatus
from midstream.tui import commands
from midstream.tui.base_app import BaseApp, app_of
from midstream.tui.screens import create_slice, delete_slice
from midstream.tui.screens.dialogs.document import DocumentScreen
from midstream.tui.screens.progress import Progressed, progress_lines
from midstream.tui.state.selection import Selection
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table

COLUMNS = (
    Column("SLICE", widest=30),
    Column("PROJECT/ZONE", drop=3, widest=40),
    Column("TARGET", drop=2),
    Column("STATE"),
    Column("TYPE", drop=1),
    Column("WORKERS", right=True, drop=5),
    Column("PRICE CLASS", drop=4),
    Column("AGE", right=True, drop=6),
    Column("", widest=200, rest=True),
)
REFRESH_INTERVAL = 30.0  # seconds
NOT_CONFIGURED = (
    "no Google Cloud project in the fleet file.",
    "Name it in a target of type tpu, or in google: {projects: [...]}:",
    "  docs/how-to/gcp.md",
)
NO_SLICES = (
    "no slices in the fleet file's projects and zones.",
    "A migration (m) to a target of type tpu creates one, and so does",
    "  midstream --launch CONFIG --on TARGET",
)


class SlicesScreen(ModalScreen[None]):
    """Lists the slices every `REFRESH_INTERVAL` while it is open."""

    BINDINGS = commands.bindings(commands.SLICES)

    class Listed(Message):
        """The slices were listed, or the request failed."""

        def __init__(self, listing: SliceListing | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.listing, self.error = listing, error

    def __init__(self) -> None:
        super().__init__()
        self._listing = False
        self._slices: SliceListing | None = None
        self._error: MidstreamError | None = None
        self._progress = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            changes = "" if self.midstream.readonly else "n create, D delete, "
            yield Rule("TPU slices", self.midstream.glyphs, f"{changes}y copy, Y YAML, r refresh, esc close")
            yield Table(COLUMNS, self.midstream.glyphs, id="slices")
            yield Static(id="slices-words")

    @property
    def midstream(self) -> BaseApp:
        return app_of(self)

    def on_mount(self) -> None:
        self.query_one(Table).show((), empty=("listing slices ...",))
        self.query_one(Table).focus()
        self.set_interval(REFRESH_INTERVAL, self.action_again)
        self.action_again()

    def action_again(self) -> None:
        """List the slices, one request at a time."""
        if not self._listing:
            self._listing = True
            self.midstream.background.run(self._list, self._list_failed)

    def _list(self) -> None:
        try:
            self.post_message(self.Listed(self.midstream.actions.slices(), None))
        except MidstreamError as error:
            self.post_message(self.Listed(None, error))

    def _list_failed(self, error: Exception) -> None:
        self.post_message(self.Listed(None, MidstreamError(f"{type(error).__name__}: {error}")))

    def on_slices_screen_listed(self, event: Listed) -> None:
        self._listing = False
        self._error = event.error
        self._slices = event.listing or self._slices  # an error keeps the last listing
        self._paint()

    def on_progressed(self, event: Progressed) -> None:
        self._progress = event.line
        self._paint()

    def _paint(self) -> None:
        listing, glyphs, now = self._slices, self.midstream.glyphs, self.midstream.screen_state.now
        lines = progress_lines(self._progress, self._error, glyphs)
        if listing is None:
            self.query_one(Table).show((), empty=("slices unknown.", "r refreshes."))
        else:
            rows = [slice_row(slice_, target, now, glyphs) for slice_, target in listing.slices]
            paths = {row.key for row in rows}
            rows += [creatable_row(missing, glyphs) for missing in listing.creatable if missing.path not in paths]
            self.query_one(Table).show(rows, empty=NO_SLICES if listing.configured else NOT_CONFIGURED)
            lines += [Text(f" {glyphs.stale} {problem}", palette.WAIT) for problem in listing.problems]
        self.query_one("#slices-words", Static).update(Text("\n").join(lines))

    def action_copy(self) -> None:
        """Copy the command line that lists the slices."""
        line = self.midstream.actions.command("--status")
        self.app.copy_to_clipboard(line)
        self.notify(f"copied: {line}", markup=False)

    def action_leave_to(self, action: str) -> None:
        """Close the dialog, and run an action of the screen behind it."""
        self.dismiss()
        self.app.call_after_refresh(self._run_behind, action)

    async def _run_behind(self, action: str) -> None:
        await self.app.screen.run_action(action)

    def action_document(self) -> None:
        """Show all that is known of the selected slice."""
        path = self.query_one(Table).selected
        listing = self._slices or SliceListing()
        values = {missing.path: {**asdict(missing), "status": "missing"} for missing in listing.creatable}
        values |= {slice_.path: documents.slice_event(slice_, target).fields() for slice_, target in listing.slices}
        if path is None:
            self.notify("nothing is selected")
        else:
            self.app.push_screen(DocumentScreen(Selection(str(path), "slice", values[str(path)])))

    # ------------------------------------------------------------------------------------------ create, delete

    def _refused(self) -> bool:
        """Return True under --readonly or during a deletion, with a toast."""
        if self.midstream.readonly:
            self.notify("--readonly: changes are refused", severity="warning")
        elif self._progress:
            self.notify("wait for the running deletion", severity="warning")
        return self.midstream.readonly or bool(self._progress)

    def action_create(self) -> None:
        place = self.query_one(Table).selected
        listing = self._slices or SliceListing()
        creatable = next((missing for missing in listing.creatable if missing.path == place), None)
        if creatable is None:
            self.notify("only a missing slice with create: true in the fleet file can be created", severity="warning")
        elif not self._refused():
            create_slice.ask(self.midstream, creatable)

    def action_delete(self) -> None:
        path = self.query_one(Table).selected
        listing = self._slices or SliceListing()
        slice_, target = next((pair for pair in listing.slices if pair[0].path == path), (None, ""))
        if slice_ is None:
            self.notify("no slice selected", severity="warning")
        elif not self._refused():

            def report(line: str) -> None:
                self.post_message(Progressed(line))

            delete_slice.ask(self.midstream, slice_, target, report, lambda error: self._deleted(bool(target), error))

    def _deleted(self, is_target: bool, error: MidstreamError | None) -> None:
        """Show the result of deleting a slice.

        After deleting a target's slice, whose workers were hosts, the application restarts.
        """
        self._progress = ""
        if not self.is_attached:
            if error is not None:
                self.midstream.notify(error.hint, title=error.message, severity="error", markup=False)
        elif error is not None:
            self._error = error
            self._paint()
        elif is_target and self.is_current:
            self.midstream.restart()
        else:
            self.action_again()


def creatable_row(missing: CreatableTarget, glyphs: Glyphs) -> Row:
    """Return the row of a target whose slice does not exist."""
    project, zone, name = missing.path.split("/")
    state = (f"{glyphs.idle} missing", palette.DIM)
    cells = (
        name,
        f"{project}/{zone}",
        missing.target,
        state,
        missing.accelerator_type or format.NONE,
        format.NONE,
    )
    return Row(missing.path, (*cells, missing.price_class, format.NONE, ("n creates it", palette.ACCENT)), dim=True)


def slice_row(slice_: Slice, target: str, now: float, glyphs: Glyphs) -> Row:
    """Return the row of a slice, with the provider's state, a glyph and a colour."""
    sign, colour = {
        SliceStatus.READY: (glyphs.running, palette.GOOD),
        SliceStatus.CREATING: (glyphs.busy, palette.WAIT),
        SliceStatus.STOPPING: (glyphs.stale, palette.WAIT),
        SliceStatus.PREEMPTED: (glyphs.idle, palette.DIM),
        SliceStatus.FAILED: (glyphs.failed, palette.BAD),
    }.get(slice_.status, (glyphs.stale, palette.WAIT))
    notes = remarks(slice_)
    waits = all(note.startswith("queue: ") for note in notes)
    cells = (
        slice_.name,
        f"{slice_.project}/{slice_.zone}",
        target or format.NONE,
        (f"{sign} {slice_.state}", colour),
        " ".join(filter(None, (slice_.accelerator_type, slice_.topology))) or format.NONE,
        str(len(slice_.workers)) if slice_.workers else format.NONE,
        slice_.price_class,
        format.age(now - slice_.created if slice_.created else None),
        (", ".join(notes), palette.DIM if waits else palette.WAIT),
    )
    return Row(slice_.path, cells, dim=slice_.status == SliceStatus.PREEMPTED)
