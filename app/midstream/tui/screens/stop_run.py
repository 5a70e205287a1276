"""Stop runs: confirmed by a word, done in the background."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from midstream.counts import count
from midstream.errors import MidstreamError
from midstream.operations.stop import warnings
from midstream.tui.base_app import BaseApp
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.watch.snapshot import RunView, Snapshot

MAX_LISTED = 12  # runs that the confirmation lists by name


def ask(screen: MidstreamScreen, run: RunView) -> None:
    """Confirm, then stop the run."""
    if not run.running:
        screen.notify(f"{run.run_id} is not running: {run.state}", severity="warning", markup=False)
        return

    def answered(yes: bool | None) -> None:
        if yes and _as_shown(screen, run):
            screen.in_background(partial(_stop, screen.midstream, screen.screen_state.snapshot, run))

    lines = (
        f"{run.run_id} on {run.host} saves a checkpoint at its next step, then stops.",
        "Nothing is deleted. R starts it again, m migrates it to any target.",
        *warnings(screen.screen_state.migrations, run),
    )
    screen.app.push_screen(ConfirmScreen(f"Stop {run.run_id}", lines, word=run.run_id), answered)


def ask_many(screen: MidstreamScreen, runs: Sequence[RunView]) -> None:
    """Confirm once, then stop those of the runs that are running, at the same time."""
    running = [run for run in runs if run.running]
    others = [run for run in runs if not run.running]
    if not running:
        screen.notify("none of the marked runs is running", severity="warning")
        return

    def answered(yes: bool | None) -> None:
        if yes and (still := [run for run in running if _as_shown(screen, run)]):
            screen.notify(f"stopping {count(len(still), 'run')}: each saves first", markup=False)
            for run in still:
                screen.in_background(partial(_stop_one_of_many, screen.midstream, screen.screen_state.snapshot, run))

    listed = [f"  {run.run_id} on {run.host}, step {run.step or 0:,}" for run in running[:MAX_LISTED]]
    more = [f"  and {len(running) - MAX_LISTED} more"] if len(running) > MAX_LISTED else []
    not_running = [f"Not running: {', '.join(run.run_id for run in others[:MAX_LISTED])}."] if others else []
    lines = (
        "Each saves a checkpoint at its next step, then stops. Nothing is deleted.",
        *listed,
        *more,
        *not_running,
        *(warning for run in running for warning in warnings(screen.screen_state.migrations, run)),
    )
    what = count(len(running), "run") if len(running) > 1 else running[0].run_id
    screen.app.push_screen(ConfirmScreen(f"Stop {what}", lines, word=f"stop {len(running)}"), answered)


def _as_shown(screen: MidstreamScreen, run: RunView) -> bool:
    """Return True if the run is believed, and in the attempt that was confirmed.

    An attempt that has ended needs no stop: the one after it, perhaps elsewhere, would go on and count as stopped.
    """
    snapshot = screen.screen_state.snapshot
    now = next(iter(snapshot.believed(run.run_id)), None)
    if now is None:
        words = f"{run.host} only claims {run.run_id}: {snapshot.judgement(run.run_id).standing(run.host).reason}"
        screen.notify(words, severity="warning", markup=False)
        return False
    if (now.host, now.attempt) == (run.host, run.attempt):
        return True
    words = f"{run.run_id} is on {now.host} now, attempt {now.attempt}: press S again"
    screen.notify(words, severity="warning", markup=False)
    return False


def _stop(app: BaseApp, snapshot: Snapshot, run: RunView) -> None:
    def say(words: str) -> None:
        app.call_later(app.notify, words, markup=False)

    say(app.actions.stop_run(snapshot, run, say))


def _stop_one_of_many(app: BaseApp, snapshot: Snapshot, run: RunView) -> None:
    """Stop a run; an error names it, because those of several arrive in any order."""
    try:
        _stop(app, snapshot, run)
    except MidstreamError as error:
        raise MidstreamError(f"{run.run_id}: {error.message}", error.hint) from error
