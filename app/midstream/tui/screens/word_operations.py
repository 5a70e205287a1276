"""Operations of `:` words, whose result is a document or a question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from midstream.errors import MidstreamError
from midstream.operations.delete_target import occupants
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.dialogs.document import DocumentScreen
from midstream.tui.state.selection import Selection
from midstream.watch import resolved_config


def show_config(screen: MidstreamScreen, run_id: str) -> None:
    """Show the configuration of a run's newest attempt."""
    run = screen.screen_state.snapshot.copies(run_id)[0]

    def work() -> None:
        value = resolved_config.value_of(screen.midstream.actions.config(run, run.attempt))
        _later(screen, partial(_show, screen, Selection(run_id, "configuration", value)))

    screen.in_background(work)


def check(screen: MidstreamScreen, name: str) -> None:
    """Check a target before a run starts there, or a run before it is moved."""
    screen.notify(f"checking {name} ...", markup=False)

    def work() -> None:
        checks = [vars(check) for check in screen.midstream.actions.check(name)]
        _later(screen, partial(_show, screen, Selection(name, "checks", {"checks": checks})))

    screen.in_background(work)


def repair(screen: MidstreamScreen, run_id: str) -> None:
    """Show the damaged records of a run; write their replacements, after confirmation."""
    actions = screen.midstream.actions

    def work() -> None:
        repairs, damaged = actions.find_damage(run_id)
        lines = [*(line for repair in repairs for line in repair.lines()), *damaged]
        proposals = [repair.proposal for repair in repairs if repair.proposal.determined]

        def answered(yes: bool | None) -> None:
            if yes:
                screen.in_background(lambda: _toast(screen, actions.repair(proposals)))

        if not proposals:
            _toast(screen, "\n".join(lines) or f"no record of {run_id} is damaged")
            return
        question = ConfirmScreen(f"Repair {run_id}", lines, word=run_id)
        _later(screen, lambda: screen.app.push_screen(question, answered))

    screen.in_background(work)


def adopt(screen: MidstreamScreen, place: str) -> None:
    """Adopt the trainer that runs in a directory of a host, after confirmation."""

    def answered(yes: bool | None) -> None:
        if yes:
            screen.in_background(lambda: _toast(screen, screen.midstream.actions.adopt(place)))

    lines = (f"The trainer that runs in {place} goes on, and becomes a run of midstream.", "Its run.yaml describes it.")
    screen.app.push_screen(ConfirmScreen(f"Adopt {place}", lines), answered)


def delete(screen: MidstreamScreen, name: str) -> None:
    """Delete the slice or the pods of a target, after confirmation."""
    actions = screen.midstream.actions
    target = next((choice for choice in actions.targets() if choice.name == name), None)
    if target is None:
        raise MidstreamError(f"no target {name!r}", ", ".join(choice.name for choice in actions.targets()))

    def answered(yes: bool | None) -> None:
        if yes:
            screen.in_background(lambda: _toast(screen, actions.delete(name, partial(_toast, screen))))

    there = occupants(screen.screen_state.snapshot, target.hosts)
    lines = [f"What midstream created for {name} is deleted, with what runs there and the data on its disks."]
    lines += [f"{line}." for line in there.lines()]
    screen.app.push_screen(ConfirmScreen(f"Delete {name}", lines, word=name), answered)


def _later(screen: MidstreamScreen, action: Callable[[], object]) -> None:
    screen.app.call_later(action)


def _show(screen: MidstreamScreen, selection: Selection) -> None:
    screen.app.push_screen(DocumentScreen(selection))


def _toast(screen: MidstreamScreen, words: str) -> None:
    screen.app.call_later(screen.app.notify, words, markup=False)
