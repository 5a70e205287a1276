"""Start the terminal UI on a fleet or on a recording."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from midstream.errors import MidstreamError
from midstream.hosts.prompter import PROMPTS
from midstream.migrate.journal import migration_state
from midstream.printable import printable
from midstream.state_directory import state_directory
from midstream.tui.app import MidstreamApp
from midstream.tui.fleet_session import FleetSession, UnopenedFleet
from midstream.tui.screens.dialogs.dialog_prompter import DialogPrompter
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import palette
from midstream.tui.style.glyphs import UNICODE
from midstream.tui.style.terminal_background import is_light

if TYPE_CHECKING:
    from midstream.migrate.journal.request import Request
    from midstream.tui.recording import Recorder


class UiResult(NamedTuple):
    """End of the terminal UI.

    ``code`` is the exit code, or `RELOAD_EXIT_CODE` where the fleet file has changed; ``request`` is what the wizard
    then opens with; ``quit_choice`` is the answer of the demo's quit dialog.
    """

    code: int
    request: Request | None
    quit_choice: str = ""


def run_tui(
    fleet: UnopenedFleet,
    *,
    readonly: bool = False,
    ascii_only: bool = False,
    start_run: str | None = None,
    record: str | None = None,
    request: Request | None = None,
    demo: bool = False,
) -> UiResult:
    """Show the fleet until the user quits.

    Args:
        fleet: The fleet to watch. If its hosts are known its file is read after the first frame.
        readonly: Refuse every action that changes something.
        ascii_only: Draw with ASCII glyphs only.
        start_run: Run whose screen is opened first.
        record: File to record the session to.
        request: Migration request that the wizard opens with.
        demo: Runs and migrations end with the application.

    Raises:
        UsageError: The recording cannot be written.
        MidstreamError: The fleet file cannot be read.
    """
    recorder = _recorder(record) if record else None
    session = FleetSession(fleet, recorder=recorder, store_series=not demo)
    if fleet.kinds is None:
        session.open()
    errors: list[MidstreamError] = []

    def start() -> None:
        try:
            session.start()
        except MidstreamError as error:
            errors.append(error)
            app.call_later(app.exit)

    layout = SavedLayout.load(state_directory() / "screen.json", fleet=fleet.path)
    if not layout.has_theme:  # of the first start alone
        layout.theme = palette.LIGHT if is_light() else layout.theme
        layout.save()
    keys = _own_keys()
    app = MidstreamApp(
        session,
        session.actions,
        readonly=readonly,
        ascii_only=ascii_only or not _has_signs(),
        start_run=start_run,
        request=request,
        demo=demo,
        layout=layout,
        after_first_frame=start,
    )
    if keys:
        from midstream.tui import own_keys

        own_keys.use(app, keys)
    prompter = DialogPrompter(app)
    with PROMPTS.use(prompter):  # every question is a dialog: a prompt on the terminal would break the screen
        try:
            app.run_alone()
        finally:
            prompter.close()
            session.close()
            if recorder:
                recorder.close()
    if recorder and recorder.problem:
        print(printable(f"midstream: {recorder.problem}"), file=sys.stderr)
    if errors:
        raise errors[0]
    if app.return_code == 0 and not demo:
        print(f"midstream: {_still_running(app.screen_state)}", file=sys.stderr)
    return UiResult(app.return_code or 0, app.request, app.quit_choice)


def _own_keys() -> dict[str, tuple[str, ...]]:
    """Return the keys of the user's file.

    It is read before the first frame only where there is one.
    """
    file = Path(os.environ.get("MIDSTREAM_KEYS") or "~/.config/midstream/keys.yaml").expanduser()
    if not file.exists():
        return {}
    from midstream.tui import own_keys

    return own_keys.read(file)


def _has_signs() -> bool:
    """Return True if the terminal's encoding has the signs that are drawn.

    Without them each would be written as six characters. Textual writes to stderr.
    """
    encoding = sys.__stderr__.encoding if sys.__stderr__ is not None else "ascii"
    try:
        "".join(map(str, vars(UNICODE).values())).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _recorder(file: str) -> Recorder:
    from midstream.tui.recording import Recorder

    return Recorder(file)


def _still_running(screen_state: ScreenState) -> str:
    """Name what continues after the application has ended, and how to see it again."""
    running = [view.migration for view in screen_state.migrations if view.state == migration_state.RUNNING]
    follow = f"; midstream --continue {running[0]} follows the migration" if running else ""
    return f"runs and migrations continue; midstream --status shows them{follow}"


def replay_tui(file: str, *, ascii_only: bool = False, speed: float = 1.0) -> int:
    """Show a recorded session, read-only. Return the exit code.

    Raises:
        UsageError: ``file`` is not a recording, or one of another version.
    """
    from midstream.tui.recording import Replay

    replay = Replay.load(file, speed)
    ascii_only = ascii_only or not _has_signs()
    app = MidstreamApp(replay, replay.actions, readonly=True, ascii_only=ascii_only, clock=replay.clock)
    replay.play()
    try:
        app.run_alone()
    finally:
        replay.stop()
    return app.return_code or 0
