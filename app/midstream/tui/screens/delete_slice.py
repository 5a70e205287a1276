"""Deletion of a slice, confirmed by its name, in the background.

The confirmation shows the runs that train there.
"""

from __future__ import annotations

from collections.abc import Callable

from midstream.errors import MidstreamError
from midstream.operations.delete_target import Occupants, not_a_target, occupants
from midstream.providers.provider import Slice
from midstream.tui.base_app import BaseApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen


def ask(
    app: BaseApp,
    slice_: Slice,
    target: str,
    report: Callable[[str], None],
    ended: Callable[[MidstreamError | None], object],
) -> None:
    """Confirm, then delete the slice.

    Where another run has begun to train there in the meantime, confirm again.

    Args:
        app: The application.
        slice_: The slice.
        target: Name of its target, or an empty string.
        report: Called with lines of progress, on any thread.
        ended: Called with the error, or None, in the application's thread.
    """

    def work() -> None:
        error = None
        try:
            app.actions.delete(slice_.path, report)
        except MidstreamError as problem:
            error = problem
        app.call_later(ended, error)

    def failed(error: Exception) -> None:
        ended(MidstreamError(f"{type(error).__name__}: {error}"))

    def answered(yes: bool | None) -> None:
        now, agreed = ({run.run_id for run in there.runs} for there in (_training(app, slice_, target), training))
        if yes and now - agreed:
            app.notify("another run trains there by now", severity="warning")
            ask(app, slice_, target, report, ended)
        elif yes:
            report(f"deleting {slice_.path} ...")
            app.background.run(work, failed)

    lines = [f"{slice_.path} is {slice_.text()}.", "It is deleted with the data on its disks; a bucket is not."]
    training = _training(app, slice_, target)
    lines += [f"{line}." for line in training.lines()]
    if training.runs:
        lines.append(f"To save it first: esc, then midstream --delete {target} --save-first.")
    app.push_screen(ConfirmScreen(f"Delete {slice_.name}", lines, word=slice_.name), answered)


def _training(app: BaseApp, slice_: Slice, target: str) -> Occupants:
    """Return what trains on a slice, as far as it is known."""
    hosts = next((choice.hosts for choice in app.actions.targets() if target and choice.name == target), ())
    if not hosts:
        return Occupants(unknown="" if target else not_a_target(slice_.path))
    return occupants(app.screen_state.snapshot, hosts)
