"""Every screen of the terminal UI over prepared values: for the goldens, and for pictures to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from textual.widgets import Input

from midstream.errors import MidstreamError
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.app import MidstreamApp
from midstream.watch.snapshot import LogRange, RunView, Snapshot
from support.tui import fleets, prepared_actions, prepared_migrations
from support.tui.prepared_actions import PreparedActions


@dataclass(frozen=True)
class Scene:
    """A screen: a fleet, its migrations, what the actions answer, and the keys that lead there.

    A callable among the keys changes the application between two of them.
    """

    snapshot: Snapshot
    migrations: tuple[MigrationView, ...] = ()
    keys: Sequence[str | Callable[[MidstreamApp], None]] = ()
    prepare: Callable[[PreparedActions], None] = lambda _: None

    def actions(self) -> PreparedActions:
        """Return the actions of this scene."""
        actions = PreparedActions(*self.migrations)
        self.prepare(actions)
        return actions


def answer(**values: object) -> Callable[[PreparedActions], None]:
    """Return a function that sets these attributes of the actions."""

    def prepare(actions: PreparedActions) -> None:
        for name, value in values.items():
            setattr(actions, name, value)

    return prepare


def fill(app: MidstreamApp, **values: str) -> None:
    """Fill in the fields of the form in front."""
    for name, value in values.items():
        app.screen.query_one(f"#field-{name}", Input).value = value


LOG = "".join(f"2026-11-21T10:15:02Z I step {number} loss {3 - number / 20_000:.3f}\n" for number in range(20_000))


def run_with_a_long_log() -> RunView:
    """A run of whose log the last 60 lines are known."""
    lines = tuple(LOG.splitlines()[-60:])
    size = len(LOG)
    return fleets.run(log=lines, log_range=LogRange(size - sum(len(line) + 1 for line in lines), size))


BIG, SMALL = fleets.big_fleet(), fleets.small_fleet()
RUN, MOVED = fleets.small_fleet(fleets.moved_run()), prepared_migrations.moved_fleet()
STOPPED = fleets.small_fleet(fleets.run(state="stopped", running=False))
LONG_LOG = fleets.small_fleet(run_with_a_long_log())
CURVES = replace(SMALL, system={"small": fleets.system_series(3600)})
CERTIFIED, MOVING = (prepared_migrations.certified(),), (prepared_migrations.migration(),)
LAUNCH = ("L", partial(fill, config="configs/gpt2_nano.yaml", target="large"))
SETTINGS = ("m", "s", partial(fill, batch="64", healthy_steps="20"))
NO_START = MidstreamError("gpu1: pip cannot reach the package index", "wheels: of the host in the fleet file")

SCENES = {
    "fleet-runs": Scene(BIG, CERTIFIED),
    "fleet-hosts": Scene(BIG, CERTIFIED, ("1", "j", "j")),
    "fleet-migrations": Scene(BIG, CERTIFIED, ("3",)),
    "fleet-empty": Scene(fleets.snapshot([fleets.host("small")])),
    "fleet-sorted": Scene(BIG, (), ("o", "o", "o", "o", "O")),
    "add-hosts": Scene(fleets.snapshot(), (), ("a", "space")),
    "launch-form": Scene(SMALL, (), LAUNCH),
    "launch-preflight": Scene(SMALL, (), (*LAUNCH, "enter")),
    "launch-failed": Scene(SMALL, (), (*LAUNCH, "enter", "enter", "y"), answer(started=NO_START)),
    "leftovers": Scene(SMALL, (), ("C",), answer(left=prepared_actions.LEFTOVERS + prepared_actions.SLICE_LEFTOVERS)),
    "verify-question": Scene(BIG, (), ("V",)),
    "verify": Scene(BIG, (), ("V", "y"), answer(problems=("params/c/0: another SHA-256",))),
    "costs": Scene(SMALL, (), ("5",), answer(cost_report=prepared_actions.COSTS)),
    "slices": Scene(SMALL, (), ("4",), answer(listing=prepared_actions.SLICES)),
    "host-curves": Scene(CURVES, (), ("1", "v")),
    "document": Scene(SMALL, (), ("Y",)),
    "run-curves": Scene(RUN, (), ("enter",)),
    "run-compared": Scene(BIG, (), ("j", "space", "j", "space", "enter", "left", "left")),
    "run-logs": Scene(RUN, (), ("enter", "2")),
    "run-log-end": Scene(LONG_LOG, (), ("enter", "2"), answer(log=LOG)),
    "run-log-page": Scene(LONG_LOG, (), ("enter", "2", "g"), answer(log=LOG)),
    "run-checkpoints": Scene(RUN, (), ("enter", "3")),
    "run-info": Scene(RUN, (), ("enter", "4")),
    "start-again": Scene(STOPPED, (), ("R",)),
    "wizard-plan": Scene(SMALL, (), ("m",)),
    "wizard-modes": Scene(SMALL, (), ("m", "o")),
    "wizard-settings": Scene(SMALL, (), SETTINGS),
    "wizard-preflight": Scene(SMALL, (), ("m", "enter")),
    "wizard-confirm": Scene(SMALL, (), ("m", "enter", "enter")),
    "migration-progress": Scene(MOVED, MOVING, ("3", "enter")),
    "migration-certificate": Scene(MOVED, CERTIFIED, ("3", "enter")),
    "migration-downtime": Scene(MOVED, CERTIFIED, ("3", "enter", "3")),
    "help": Scene(SMALL, (), ("question_mark",)),
}
