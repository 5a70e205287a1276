"""Deletion of a slice, confirmed by its name, in the background.

The confirmation shows the runs that train there.
"""

from __future__ import annotations

from collections.abc import Callable

from midstream import format
from midstream.errors import MidstreamError
from midstream.providers.provider import Slice
from midstream.tui.base_app import BaseApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.watch.snapshot import RunView


def ask(
    app: BaseApp,
    each: Slice,
    target: str,
    report: Callable[[str], None],
    ended: Callable[[MidstreamError | None], object],
) -> None:
    """Confirm, then delete the slice.

    Where another run has begun to train there in the meantime, confirm again.

    Args:
        app: The application.
        each: The slice.
        target: Name of its target, or an empty string.
        report: Called with lines of progress, on any thread.
        ended: Called with the error, or None, in the application's thread.
    """

    def work() -> None:
        error = None
        try:
            app.actions.delete(each.path, report)
        except MidstreamError as problem:
            error = problem
        app.call_later(ended, error)

    def failed(error: Exception) -> None:
        ended(MidstreamError(f"{type(error).__name__}: {error}"))

    def answered(yes: bool | None) -> None:
        if yes and {run.run_id for run in _training(app, target)} - {run.run_id for run in training}:
            app.notify("another run trains there by now", severity="warning")
            ask(app, each, target, report, ended)
        elif yes:
            report(f"deleting {each.path} ...")
            app.background.run(work, failed)

    lines = [f"{each.path} is {each.text()}.", "It is deleted with the data on its disks; a bucket is not."]
    training = _training(app, target)
    for run in training:
        step = format.grouped(run.step)
        lines += ["", f"{run.run_id} (step {step}) trains there: its steps after the newest checkpoint are lost."]
    if len(lines) > 2:
        lines.append(f"To save it first: esc, then midstream --delete {target} --save-first.")
    app.push_screen(ConfirmScreen(f"Delete {each.name}", lines, word=each.name), answered)


def _training(app: BaseApp, target: str) -> list[RunView]:
    """Return the runs that train on a target's hosts."""
    hosts = next((known.hosts for known in app.actions.targets() if target and known.name == target), ())
    return [run for run in app.screen_state.snapshot.runs if run.host in hosts and run.running]
