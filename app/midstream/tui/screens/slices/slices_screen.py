"""The TPU slices of the fleet file's projects and zones, as the provider tells of them."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.hosts.providers import interface
from midstream.hosts.providers.interface import Slice
from midstream.tui import commands, number_format, palette
from midstream.tui.actions import Slices, Wanted
from midstream.tui.glyphs import Glyphs
from midstream.tui.screens.slices import create_slice, delete_slice
from midstream.tui.styled_text import Text
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
EVERY = 30.0  # seconds between two questions to the provider, while one looks
NONE_NAMED = (
    "the fleet file names no Google Cloud project: no slices are looked for.",
    "targets: of type tpu, or google: {projects: [...]}, do: docs/gcp.md.",
)
NONE_THERE = (
    "no slices in the fleet file's projects and zones.",
    "A target of type tpu gets one by a move (m) to it, or by",
    "  midstream --launch CONFIG --on TARGET",
)


class SlicesScreen(ModalScreen[None]):
    """Asks the provider while it is looked at."""

    BINDINGS = commands.bindings(commands.SLICES)

    class Told(Message):
        """The provider has answered, or the question failed."""

        def __init__(self, found: Slices | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.found, self.error = found, error

    class Said(Message):
        """A line of what is under way."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    def __init__(self) -> None:
        super().__init__()
        self._asking = False
        self._found: Slices | None = None
        self._error: MidstreamError | None = None
        self._said = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule("TPU slices", self.midstream.glyphs, "n makes, D deletes, r asks again, esc closes")
            yield Table(COLUMNS, self.midstream.glyphs, id="slices")
            yield Static(id="slices-words")

    @property
    def midstream(self):
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        return self.app

    def on_mount(self) -> None:
        self.query_one(Table).show((), empty=("asking Google Cloud ...",))
        self.query_one(Table).focus()
        self.set_interval(EVERY, self.action_again)
        self.action_again()

    def action_again(self) -> None:
        """One question at a time."""
        if not self._asking:
            self._asking = True
            self.midstream.background.run(self._ask, self._told_nothing)

    def _ask(self) -> None:
        try:
            self.post_message(self.Told(self.midstream.actions.slices(), None))
        except MidstreamError as error:
            self.post_message(self.Told(None, error))

    def _told_nothing(self, error: Exception) -> None:
        self.post_message(self.Told(None, MidstreamError(f"{type(error).__name__}: {error}")))

    def on_slices_screen_told(self, event: Told) -> None:
        self._asking = False
        self._error = event.error
        self._found = event.found or self._found  # what was known before stays
        self._paint()

    def on_slices_screen_said(self, event: Said) -> None:
        self._said = event.line
        self._paint()

    def _paint(self) -> None:
        found, glyphs, now = self._found, self.midstream.glyphs, self.midstream.world.now
        lines = [Text(f" {glyphs.busy} {self._said}", palette.ACCENT)] if self._said else []
        if self._error is not None:
            lines.append(Text(f" {glyphs.failed} {self._error.message}", palette.BAD))
            lines += [Text(f"   {self._error.hint}", palette.ACCENT)] if self._error.hint else []
        if found is None:
            self.query_one(Table).show((), empty=("the slices are not known.", "r asks again."))
        else:
            rows = [slice_row(each, target, now, glyphs) for each, target in found.found]
            known = {row.key for row in rows}
            rows += [wanted_row(each, glyphs) for each in found.wanted if each.place not in known]
            self.query_one(Table).show(rows, empty=NONE_THERE if found.asked else NONE_NAMED)
            lines += [Text(f" {glyphs.stale} {problem}", palette.WAIT) for problem in found.problems]
        self.query_one("#slices-words", Static).update(Text("\n").join(lines))

    # ------------------------------------------------------------------------------------------ making, deleting

    def _refused(self) -> bool:
        """Whether --readonly stands against it, or something is under way; says so."""
        if self.midstream.readonly:
            self.notify("--readonly: this screen changes nothing", severity="warning")
        elif self._said:
            self.notify("one after the other: something is under way", severity="warning")
        return self.midstream.readonly or bool(self._said)

    def action_make(self) -> None:
        place = self.query_one(Table).selected
        wanted = next((each for each in self._found.wanted if each.place == place), None) if self._found else None
        if wanted is None:
            self.notify("what is not there, and has create: true in the fleet file, can be made", severity="warning")
        elif not self._refused():
            create_slice.ask(self.midstream, wanted.target, wanted.price)

    def action_delete(self) -> None:
        place = self.query_one(Table).selected
        found = self._found.found if self._found else ()
        each, target = next((pair for pair in found if pair[0].place == place), (None, ""))
        if each is None:
            self.notify("there is nothing to delete", severity="warning")
        elif not self._refused():

            def say(line: str) -> None:
                self.post_message(self.Said(line))

            delete_slice.ask(self.midstream, each, target, say, lambda error: self._deleted(bool(target), error))

    def _deleted(self, mine: bool, error: MidstreamError | None) -> None:
        """Where it was a target's, its workers are hosts no more: the app begins anew, unless a person is elsewhere."""
        self._said = ""
        if not self.is_attached:
            if error is not None:
                self.midstream.notify(error.hint, title=error.message, severity="error", markup=False)
        elif error is not None:
            self._error = error
            self._paint()
        elif mine and self.is_current:
            self.midstream.begin_anew()
        else:
            self.action_again()


def wanted_row(each: Wanted, glyphs: Glyphs) -> Row:
    """A target whose slice is not there."""
    project, zone, name = each.place.split("/")
    state = (f"{glyphs.idle} not there", palette.DIM)
    cells = (
        name,
        f"{project}/{zone}",
        each.target,
        state,
        each.accelerator_type or number_format.NONE,
        number_format.NONE,
    )
    return Row(each.place, (*cells, each.price_class, number_format.NONE, ("n has it made", palette.ACCENT)), dim=True)


def slice_row(each: Slice, target: str, now: float, glyphs: Glyphs) -> Row:
    """A line: the provider's own words, and what they mean by glyph and colour."""
    sign, colour = {
        interface.READY: (glyphs.running, palette.GOOD),
        interface.COMING: (glyphs.busy, palette.WAIT),
        interface.GOING: (glyphs.stale, palette.WAIT),
        interface.PREEMPTED: (glyphs.idle, palette.DIM),
        interface.FAILED: (glyphs.failed, palette.BAD),
    }.get(each.standing, (glyphs.stale, palette.WAIT))
    health = "" if each.health in ("", "HEALTHY") else each.health.lower().replace("_", " ")
    queued = f"queue: {each.queued}" if each.queued not in ("", "ACTIVE", each.state) else ""
    cells = (
        each.name,
        f"{each.project}/{each.zone}",
        target or number_format.NONE,
        (f"{sign} {each.state}", colour),
        " ".join(filter(None, (each.accelerator_type, each.topology))) or number_format.NONE,
        str(len(each.workers)) if each.workers else number_format.NONE,
        each.price_class,
        number_format.age(now - each.created if each.created else None),
        (", ".join(filter(None, (health, queued, each.why))), palette.WAIT if health or each.why else palette.DIM),
    )
    return Row(each.place, cells, dim=each.standing == interface.PREEMPTED)
