"""The TPU slices of the fleet file's projects and zones, as the provider tells of them."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.hosts.providers import base
from midstream.hosts.providers.base import Slice
from midstream.tui import format, palette
from midstream.tui.actions import Slices
from midstream.tui.glyphs import Glyphs
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
    "targets: of type tpu, or google: {projects: [...]}, name some; docs/gcp.md shows how.",
)
NONE_THERE = (
    "no slices in the fleet file's projects and zones.",
    "A target of type tpu that is not there is asked for by a move (m) to it, or by",
    "  midstream --launch CONFIG --on TARGET",
)


class SlicesScreen(ModalScreen[None]):
    """Asks the provider while it is looked at."""

    BINDINGS: ClassVar = [("escape,q,4", "dismiss", "Close"), ("r", "again", "Again")]

    class Told(Message):
        """The provider has answered, or the question failed."""

        def __init__(self, found: Slices | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.found, self.error = found, error

    def __init__(self) -> None:
        super().__init__()
        self._asking = False
        self._found: Slices | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule("TPU slices", self.midstream.glyphs, "r asks again, esc closes")
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
        words = Text()
        if event.error is not None:  # what was known before stays
            words.append(f" {self.midstream.glyphs.failed} {event.error.message}", palette.BAD)
            words.append(f"\n   {event.error.fix}" if event.error.fix else "", palette.ACCENT)
        found = event.found or self._found
        self._found = found
        if found is None:
            self.query_one(Table).show((), empty=("the slices are not known.", "r asks again."))
        else:
            now = self.midstream.world.now
            rows = [slice_row(each, target, now, self.midstream.glyphs) for each, target in found.found]
            self.query_one(Table).show(rows, empty=NONE_THERE if found.asked else NONE_NAMED)
            for problem in found.problems:
                words.append("\n" if words else "").append(f" {self.midstream.glyphs.stale} {problem}", palette.WAIT)
        self.query_one("#slices-words", Static).update(words)


def slice_row(each: Slice, target: str, now: float, glyphs: Glyphs) -> Row:
    """A line: the provider's own words, and what they mean by glyph and colour."""
    sign, colour = {
        base.READY: (glyphs.running, palette.GOOD),
        base.COMING: (glyphs.busy, palette.WAIT),
        base.GOING: (glyphs.stale, palette.WAIT),
        base.GONE: (glyphs.idle, palette.DIM),
        base.FAILED: (glyphs.failed, palette.BAD),
    }.get(each.standing, (glyphs.stale, palette.WAIT))
    health = "" if each.health in ("", "HEALTHY") else each.health.lower().replace("_", " ")
    queued = f"queue: {each.queued}" if each.queued not in ("", "ACTIVE", each.state) else ""
    cells = (
        each.name,
        f"{each.project}/{each.zone}",
        target or format.NONE,
        (f"{sign} {each.state}", colour),
        " ".join(filter(None, (each.accelerator_type, each.topology))) or format.NONE,
        str(len(each.workers)) if each.workers else format.NONE,
        each.price_class,
        format.age(now - each.created if each.created else None),
        (", ".join(filter(None, (health, queued, each.why))), palette.WAIT if health or each.why else palette.DIM),
    )
    return Row(each.place, cells, dim=each.standing == base.GONE)
