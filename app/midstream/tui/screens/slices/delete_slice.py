"""Give a slice back: asked with its name and with what still trains there, done in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.hosts.providers.interface import Slice
from midstream.tui import number_format
from midstream.tui.screens.dialogs.confirm import ConfirmScreen

if TYPE_CHECKING:
    from midstream.tui.app import MidstreamApp


def ask(
    app: MidstreamApp,
    each: Slice,
    target: str,
    say: Callable[[str], None],
    ended: Callable[[MidstreamError | None], object],
) -> None:
    """Ask, and delete it where the answer is yes. ``say`` gets a line of progress, on any thread; ``ended`` how it came
    out, on the screens'."""

    def work() -> None:
        error = None
        try:
            app.actions.delete(each.place, say)
        except MidstreamError as problem:
            error = problem
        app.call_later(ended, error)

    def failed(error: Exception) -> None:
        ended(MidstreamError(f"{type(error).__name__}: {error}"))

    def answered(yes: bool | None) -> None:
        if yes:
            say(f"deleting {each.place} ...")
            app.background.run(work, failed)

    lines = [f"{each.place} is {each.text()}.", "It is deleted with all that lies on its disks; a bucket stays."]
    for line in _training(app, target):
        lines += ["", f"{line} trains there now: nothing after its newest checkpoint is kept."]
    app.push_screen(ConfirmScreen(f"Delete {each.name}", lines, word=each.name), answered)


def _training(app: MidstreamApp, target: str) -> list[str]:
    """The runs that are alive on a target's hosts, each in a line."""
    hosts = next((known.hosts for known in app.actions.targets() if target and known.name == target), ())
    runs = [run for run in app.world.snapshot.runs if run.host in hosts and run.running]
    return [f"{run.run_id} (step {number_format.grouped(run.step)})" for run in runs]
