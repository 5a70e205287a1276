"""Stop a run: asked with its name, done in the background, told when it is done."""

from __future__ import annotations

from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.watch.snapshot import RunView


def ask(screen: MidstreamScreen, run: RunView) -> None:
    """Ask, and stop the run where the answer is yes."""
    if not run.running:
        screen.notify(f"{run.run_id} does not run: it is {run.state}", severity="warning", markup=False)
        return
    app = screen.midstream

    def work() -> None:
        app.actions.stop_run(run)
        app.call_later(app.notify, f"{run.run_id} has stopped and saved", markup=False)

    def answered(yes: bool | None) -> None:
        if yes:
            screen.notify(f"{run.run_id}: saving, then it stops", markup=False)
            screen.in_background(work)

    lines = (
        f"{run.run_id} on {run.host} saves a checkpoint at its next step, then it stops.",
        "Nothing is deleted. To go on later, move it (m) to any target.",
    )
    app.push_screen(ConfirmScreen(f"Stop {run.run_id}", lines, word=run.run_id), answered)
